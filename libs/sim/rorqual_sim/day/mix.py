"""What requests are like: a few classes of equal count, by how much prefill they are."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist

import numpy as np
from rorqual_policy.step_cost import StepCost, chunk_cost_s

from rorqual_sim.workloads import PricedTrace


@dataclass(frozen=True)
class Mix:
    """Means of each class, the lightest first; a request is as likely of one as of another."""

    missed_tokens: tuple[float, ...]
    """Prompt tokens that no cache covers."""
    work_s: tuple[float, ...]
    """Of one prefill rank."""
    output_tokens: float
    kv_tokens: float
    """Context of a running request, halfway through its answer."""

    @property
    def num_classes(self) -> int:
        return len(self.work_s)

    @property
    def mean_work_s(self) -> float:
        return sum(self.work_s) / len(self.work_s)

    @property
    def mean_missed_tokens(self) -> float:
        return sum(self.missed_tokens) / len(self.missed_tokens)


def conversations(cost: StepCost, num_classes: int = 8) -> Mix:
    """Log-normal prompts. Source: a public trace of conversations, as the scheduling study has it:
    2.5K tokens missed by half of the requests and 7.5K by the mean one; 343 tokens of output behind
    12K of input."""
    median, mean = 2_500.0, 7_500.0
    quantile = NormalDist(log(median), sqrt(2 * log(mean / median))).inv_cdf
    fine = [exp(quantile((i + 0.5) / (64 * num_classes))) for i in range(64 * num_classes)]
    parts = [fine[64 * i : 64 * (i + 1)] for i in range(num_classes)]
    return Mix(
        missed_tokens=tuple(sum(part) / 64 for part in parts),
        work_s=tuple(sum(chunk_cost_s(cost, int(n), 0) for n in part) / 64 for part in parts),
        output_tokens=343.0,
        kv_tokens=12_000.0 + 343.0 / 2,
    )


def mix_of(priced: PricedTrace, num_classes: int = 8) -> Mix:
    """The classes of a trace's requests behind a store that all ranks share."""
    order = np.argsort(priced.work_s, kind="stable")
    missed = (priced.trace.input_tokens - priced.cached_tokens)[order]
    work_s = priced.work_s[order]
    kv_tokens = priced.trace.input_tokens + priced.trace.output_tokens / 2
    return Mix(
        missed_tokens=tuple(float(part.mean()) for part in np.array_split(missed, num_classes)),
        work_s=tuple(float(part.mean()) for part in np.array_split(work_s, num_classes)),
        output_tokens=float(priced.trace.output_tokens.mean()),
        kv_tokens=float(kv_tokens.mean()),
    )
