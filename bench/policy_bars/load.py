"""What the prefill bars run: one trace on a fleet of 128 ranks at some share of its capacity."""

from __future__ import annotations

from collections.abc import Hashable, MutableMapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from rorqual_policy.prefill_order import FIRST_COME
from rorqual_policy.prefill_policy import (
    STEP_LIMIT_S,
    BucketMode,
    PrefillPolicy,
    deepseek_policy,
    rorqual_policy,
)
from rorqual_policy.step_cost import STUDY_COST, StepBudget, StepCost
from rorqual_sim.prefill import PrefillFleet, PrefillRun, PushRule, pooled_fifo, simulate_prefill
from rorqual_sim.traces import Trace
from rorqual_sim.workloads import (
    Burst,
    PricedTrace,
    Workload,
    build_workload,
    price,
    with_estimate_noise,
)

FLEET = PrefillFleet()
LONGEST_WINDOW_S = 1800.0
FIXED_CHUNK = 16384
SEED = 1
SLOW_START = StepCost(20e-3, STUDY_COST.a1_s, 4 * STUDY_COST.a2_s, 4 * STUDY_COST.a3_s)
"""The sensitivity case: a0 = 20 ms, attention equal to the linear part at 64K."""


def rorqual(cost: StepCost = STUDY_COST) -> PrefillPolicy:
    return rorqual_policy(cost)


def deepseek_spill(cost: StepCost = STUDY_COST) -> PrefillPolicy:
    return replace(deepseek_policy(cost), name="deepseek-spill", buckets=BucketMode.SPILL)


def fixed_budget(cost: StepCost = STUDY_COST) -> PrefillPolicy:
    """Ours, with steps of the longest time always."""
    return replace(rorqual(cost), name="fixed", budget=StepBudget(STEP_LIMIT_S, STEP_LIMIT_S))


def in_order(cost: StepCost = STUDY_COST) -> PrefillPolicy:
    """Ours, in order of arrival alone."""
    fifo = replace(rorqual(cost), name="fifo", buckets=BucketMode.POOLED, order=FIRST_COME)
    return replace(fifo, shared_part=0.0)


def pooled(cost: StepCost = STUDY_COST) -> PrefillPolicy:
    """Ours without buckets."""
    return replace(rorqual(cost), name="pooled", buckets=BucketMode.POOLED)


COMPARATOR = PrefillPolicy(
    "comparator", BucketMode.POOLED, FIRST_COME, StepBudget(STEP_LIMIT_S, STEP_LIMIT_S)
)


@dataclass(frozen=True)
class Waits:
    """Times to first token of the requests that count."""

    mean_s: float
    p50_s: float
    p99_s: float
    miss: float
    """Share of requests later than max(2 s, 5 x alone on an idle fleet)."""
    p99_64k_256k_s: float


class Load:
    """One trace as load; workloads are kept, they are asked for again and again."""

    def __init__(self, trace: Trace, seed: int = SEED) -> None:
        self.trace = trace
        self.seed = seed
        self.kind = _kind(trace)
        self.window_s = LONGEST_WINDOW_S
        if not trace.is_relative:
            self.window_s = min(self.window_s, float(trace.arrival_s[-1]))
        self.priced = cache(self._priced)
        self.workload = cache(self._workload)

    def _priced(self, cost: StepCost) -> PricedTrace:
        return price(self.trace, cost)

    def _workload(
        self,
        share: float,
        cost: StepCost = STUDY_COST,
        num_ranks: int = FLEET.num_ranks,
        burst: bool = False,
        window_s: float = 0.0,
    ) -> Workload:
        """share: of the ranks' time, less what the longest steps lose to a0."""
        usable = num_ranks * (1 - cost.a0_s / STEP_LIMIT_S)
        return build_workload(
            self.priced(cost),
            busy_ranks=share * usable,
            window_s=window_s or self.window_s,
            seed=self.seed,
            burst=Burst() if burst else None,
        )

    def forget(self) -> None:
        """Let go of the workloads."""
        self.workload = cache(self._workload)

    def run(
        self,
        policy: PrefillPolicy,
        workload: Workload,
        cost: StepCost = STUDY_COST,
        *,
        fleet: PrefillFleet = FLEET,
        push: PushRule | None = None,
        chunk_tokens: int = 0,
        noise: float = 0.0,
        is_bounded: bool = True,
    ) -> PrefillRun:
        """noise: deviation of the estimates; is_bounded: by the cost of the whole prompt."""
        if noise:
            bound = cost if is_bounded else None
            workload = with_estimate_noise(workload, noise, self.seed, bound)
        return simulate_prefill(
            workload,
            fleet,
            policy,
            cost,
            push=push,
            chunk_tokens=chunk_tokens,
            trace=self.trace if push and push.cache_s else None,
            seed=self.seed,
        )

    def waits(self, run: PrefillRun, workload: Workload, cost: StepCost = STUDY_COST) -> Waits:
        return waits(run.ttft_s, workload, cost)

    def bound(self, workload: Workload) -> Waits:
        """On the pooled first-come bound."""
        return waits(pooled_fifo(workload, FLEET.num_ranks), workload, STUDY_COST)


def waits(ttft_s: np.ndarray, workload: Workload, cost: StepCost) -> Waits:
    """Over the second half of the window."""
    counted = workload.arrival_s >= workload.arrival_s[-1] / 2
    ttft_s, work_s = ttft_s[counted], workload.work_s[counted]
    steps = np.ceil(work_s / (STEP_LIMIT_S - cost.a0_s))
    alone_s = work_s + cost.a0_s * steps
    long = ttft_s[workload.bucket[counted] == 2]
    return Waits(
        mean_s=float(ttft_s.mean()),
        p50_s=float(np.percentile(ttft_s, 50)),
        p99_s=float(np.percentile(ttft_s, 99)),
        miss=float((ttft_s > np.maximum(2.0, 5.0 * alone_s)).mean()),
        p99_64k_256k_s=float(np.percentile(long, 99)) if len(long) else 0.0,
    )


MAX_MISS = 0.01
MISSES: MutableMapping[tuple[Hashable, ...], float] = {}
"""Share of requests that are too late, by all it depends on: several bars ask for the same.
Replaced by one that workers share."""


def slo_capacity(
    load: Load,
    policy: PrefillPolicy,
    *,
    low: float,
    high: float,
    step: float = 0.01,
    fleet: PrefillFleet = FLEET,
    push: PushRule | None = None,
    chunk_tokens: int = 0,
    window_s: float = 0.0,
) -> float:
    """Largest share, to within a step, at which no more than 1 % miss; low if that is too much."""

    def miss(share: float) -> float:
        workload = load.workload(share, num_ranks=fleet.num_ranks, window_s=window_s)
        run = load.run(policy, workload, fleet=fleet, push=push, chunk_tokens=chunk_tokens)
        load.forget()
        return load.waits(run, workload).miss

    def holds(share: float) -> bool:
        window = window_s or load.window_s
        key = (load.trace.name, load.seed, policy, share, fleet, push, chunk_tokens, window)
        if key not in MISSES:
            MISSES[key] = miss(share)
        return MISSES[key] <= MAX_MISS

    below, above = 0, round((high - low) / step) + 1  # below holds or is 0, above does not
    while above - below > 1:
        middle = (below + above) // 2
        if holds(round(low + middle * step, 6)):
            below = middle
        else:
            above = middle
    return low + below * step


def our_capacity(load: Load, *, fleet: PrefillFleet = FLEET, window_s: float = 0.0) -> float:
    """Of our policy; looked for in the same places by every bar, so that none is run twice."""
    return slo_capacity(load, rorqual(), low=0.80, high=1.05, fleet=fleet, window_s=window_s)


def half_of(trace: Trace, *, is_second: bool) -> Trace:
    """The requests of the first or the second half of the sessions, else of the recorded time."""
    by = trace.session if trace.is_relative else trace.arrival_s
    middle = (by[0] + by[-1]) / 2
    kept = np.flatnonzero((by > middle) == is_second)
    first, last = int(kept[0]), int(kept[-1]) + 1
    began_s = 0.0 if trace.is_relative else float(trace.arrival_s[first])
    blocks = trace.block_start[first : last + 1]
    rows = {
        name: getattr(trace, name)[first:last]
        for name in ("input_tokens", "output_tokens", "session", "warm_tokens", "service_s")
    }
    return replace(
        trace,
        **rows,
        tenant=trace.tenant[first:last],
        arrival_s=trace.arrival_s[first:last] - began_s,
        block_start=blocks - blocks[0],
        block_ids=trace.block_ids[blocks[0] : blocks[-1]],
    )


def _kind(trace: Trace) -> str:
    if trace.is_relative:
        return "agentic"
    return "conversation" if "conversation" in trace.name else "other"
