"""Small workloads for tests of the simulator."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rorqual_policy.buckets import BUCKET_LIMITS_TOKENS
from rorqual_policy.step_cost import STUDY_COST, StepCost
from rorqual_sim.workloads import Workload, work_of


def workload_of(
    arrival_s: NDArray[np.float64],
    input_tokens: NDArray[np.int64],
    cost: StepCost,
    cached_tokens: NDArray[np.int64] | None = None,
) -> Workload:
    cached = np.zeros_like(input_tokens) if cached_tokens is None else cached_tokens
    work_s = work_of(cost, input_tokens, cached)
    num = len(arrival_s)
    return Workload(
        arrival_s=arrival_s,
        source=np.arange(num, dtype=np.int32),
        copy=np.zeros(num, np.int32),
        input_tokens=input_tokens,
        cached_tokens=cached,
        work_s=work_s,
        estimate_s=work_s,
        bucket=np.searchsorted(BUCKET_LIMITS_TOKENS, input_tokens, side="right").astype(np.int8),
        num_copies=1,
    )


def mixed_workload(num: int, seconds: float, seed: int, cost: StepCost = STUDY_COST) -> Workload:
    """Prompts of all four length buckets, some of them cached for the most part."""
    rng = np.random.default_rng(seed)
    tokens = np.minimum(rng.lognormal(8.5, 1.5, num), 400_000).astype(np.int64) + 1
    cached = (tokens * rng.choice([0.0, 0.5, 0.96], num)).astype(np.int64)
    return workload_of(np.sort(rng.uniform(0.0, seconds, num)), tokens, cost, cached)
