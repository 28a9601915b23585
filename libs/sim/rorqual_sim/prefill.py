"""Runs of a large prefill fleet: a workload, a fleet and a policy in, waiting times out."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rorqual_policy.buckets import BUCKET_LIMITS_TOKENS
from rorqual_policy.prefill_order import PrefillOrder
from rorqual_policy.prefill_policy import BucketMode, PrefillPolicy, assign_groups
from rorqual_policy.step_cost import StepCost, checked_budget

from rorqual_sim import prefill_state as state
from rorqual_sim.compiled import compiled
from rorqual_sim.prefill_loop import run_prefill
from rorqual_sim.prefix import page_nodes
from rorqual_sim.traces import Trace
from rorqual_sim.workloads import Workload

NUM_BUCKETS = len(BUCKET_LIMITS_TOKENS) + 1


@dataclass(frozen=True)
class PrefillFleet:
    """Groups of ranks in lockstep: a step of a group is as long as that of its slowest rank."""

    num_groups: int = 16
    ranks_per_group: int = 8

    @property
    def num_ranks(self) -> int:
        return self.num_groups * self.ranks_per_group


@dataclass(frozen=True)
class PushRule:
    """How a comparator places a request when it arrives."""

    placement: int
    """One of `prefill_state`'s constants."""
    cache_s: float = 0.0
    """Seconds a rank keeps the pages it touched; 0 = one store shared by all."""


@dataclass(frozen=True)
class StepStats:
    """Over steps that began while work waited."""

    num_steps: int
    mean_s: float
    cv: float
    """Standard deviation of the step time over its mean."""
    efficiency: float
    """Share of the ranks' time that was work."""
    least_fill: float
    """Smallest share of the budget that any rank filled."""
    largest_excess_s: float
    """Most that any rank's work was over the budget."""


@dataclass(frozen=True)
class PrefillRun:
    """What happened."""

    ttft_s: NDArray[np.float64]
    """One a request of the workload: from arrival to the end of the step that finishes it."""
    steps: StepStats


def simulate_prefill(
    workload: Workload,
    fleet: PrefillFleet,
    policy: PrefillPolicy,
    cost: StepCost,
    *,
    chunk_tokens: int = 0,
    push: PushRule | None = None,
    trace: Trace | None = None,
    seed: int = 0,
) -> PrefillRun:
    """Run the workload until its last request is done.

    chunk_tokens: a fixed number of tokens a step and rank instead of the policy's time budget.
    push: instead of pulling; the policy's order and budget hold within a rank.
    trace: needed where ranks keep pages of their own.

    Raises: ValueError where a step of the policy's budget can't compute a token.
    """
    if len(workload):
        checked_budget(cost, policy.budget, int(workload.input_tokens.max()))
    params = _params(fleet, policy, cost, chunk_tokens, push, trace)
    jobs = _jobs(workload, fleet, policy, seed)
    own = _own_queues(workload, fleet, policy)
    queues = _queues(own, fleet)
    ranks = _ranks(fleet.num_ranks)
    groups = state.Groups(np.full(fleet.num_groups, np.inf), own)
    caches = _caches(workload, fleet, trace if params.cache_s > 0 else None)
    stats = state.Stats(np.array([0, 0, 0, 0, np.inf, 0.0]), np.empty(len(workload), np.int32))
    run_prefill(params, jobs, queues, ranks, groups, caches, stats)
    return PrefillRun(
        ttft_s=jobs.finish_s - workload.arrival_s,
        steps=_step_stats(stats, fleet),
    )


def _params(
    fleet: PrefillFleet,
    policy: PrefillPolicy,
    cost: StepCost,
    chunk_tokens: int,
    push: PushRule | None,
    trace: Trace | None,
) -> state.LoopParams:
    return state.LoopParams(
        num_groups=fleet.num_groups,
        ranks_per_group=fleet.ranks_per_group,
        cost=cost,
        budget=policy.budget,
        order=PrefillOrder(float(policy.order.beta), float(policy.order.max_wait_s)),
        is_strict=policy.buckets is BucketMode.STRICT,
        own_lead_s=float(policy.own_lead_s),
        shared_part=0.0 if chunk_tokens else float(policy.shared_part),
        chunk_tokens=chunk_tokens,
        placement=push.placement if push else state.PULL,
        cache_s=float(push.cache_s) if push else 0.0,
        page_tokens=trace.block_tokens if trace else 1,
    )


def _jobs(workload: Workload, fleet: PrefillFleet, policy: PrefillPolicy, seed: int) -> state.Jobs:
    num = len(workload)
    rng = np.random.Generator(np.random.PCG64(seed))
    is_pooled = policy.buckets is BucketMode.POOLED
    return state.Jobs(
        arrival_s=workload.arrival_s,
        input_tokens=workload.input_tokens,
        remaining_tokens=workload.input_tokens - workload.cached_tokens,
        context_tokens=workload.cached_tokens.copy(),
        estimate_s=workload.estimate_s.copy(),
        left_s=np.zeros(num),
        key_s=np.empty(num),
        queue=np.zeros(num, np.int8) if is_pooled else workload.bucket,
        left=np.empty(num, np.int32),
        right=np.empty(num, np.int32),
        finish_s=np.full(num, np.nan),
        picks=rng.integers(0, fleet.num_ranks, (num, 2), dtype=np.int32),
    )


def _own_queues(
    workload: Workload, fleet: PrefillFleet, policy: PrefillPolicy
) -> NDArray[np.int64]:
    if policy.buckets is BucketMode.POOLED:
        return np.zeros(fleet.num_groups, np.int64)
    shares = np.bincount(workload.bucket, workload.estimate_s, NUM_BUCKETS)
    return np.array(assign_groups(shares.tolist(), fleet.num_groups), np.int64)


def _queues(own: NDArray[np.int64], fleet: PrefillFleet) -> state.Queues:
    return state.Queues(
        root=np.full(NUM_BUCKETS, -1, np.int64),
        head_key_s=np.full(NUM_BUCKETS, np.inf),
        work_s=np.zeros(NUM_BUCKETS),
        num_ranks=np.maximum(1, np.bincount(own, minlength=NUM_BUCKETS) * fleet.ranks_per_group),
        num_pulled=np.zeros(1, np.int64),
        fitting_key_s=np.full(NUM_BUCKETS, np.inf),
        fitting_rank=np.full(NUM_BUCKETS, -1, np.int64),
    )


def _ranks(num: int) -> state.Ranks:
    def counts() -> NDArray[np.int64]:
        return np.zeros(num, np.int64)

    return state.Ranks(
        root=np.full(num, -1, np.int64),
        current=np.full(num, -1, np.int64),
        pending_s=np.zeros(num),
        pending_tokens=counts(),
        num_requests=np.zeros(num),
        active_tokens=np.zeros(num),
        step_tokens=counts(),
        step_done=counts(),
        step_done_tokens=counts(),
    )


def _caches(workload: Workload, fleet: PrefillFleet, trace: Trace | None) -> state.Caches:
    start, pages, num_pages, num_touches = np.zeros(1, np.int64), np.empty(0, np.int32), 0, 0
    if trace is not None:
        start, pages, num_pages = page_nodes(trace, trace.block_tokens)
        num_touches = int(np.diff(start)[workload.source].sum())
    return state.Caches(
        page_start=start,
        pages=pages,
        source=workload.source,
        copy=workload.copy,
        num_pages=num_pages,
        first=np.zeros(workload.num_copies * num_pages, np.int32),
        next=np.zeros(num_touches + 1, np.int32),
        rank=np.zeros(num_touches + 1, np.int16),
        touched_s=np.zeros(num_touches + 1, np.float32),
        used=np.zeros(1, np.int64),
        depth=np.zeros(fleet.num_ranks, np.int64),
    )


def _step_stats(stats: state.Stats, fleet: PrefillFleet) -> StepStats:
    num, total_s, squares, work_s, least, excess_s = stats.sums.tolist()
    if not num:
        return StepStats(0, 0.0, 0.0, 0.0, 1.0, 0.0)
    mean_s = total_s / num
    variance = max(0.0, squares / num - mean_s * mean_s)
    return StepStats(
        num_steps=int(num),
        mean_s=mean_s,
        cv=float(np.sqrt(variance)) / mean_s,
        efficiency=work_s / (total_s * fleet.ranks_per_group),
        least_fill=least,
        largest_excess_s=excess_s,
    )


def pooled_fifo(workload: Workload, num_ranks: int) -> NDArray[np.float64]:
    """Waiting times on a bound that no fleet reaches: one queue in order of arrival, ranks without
    steps, each prompt on the first free one."""
    return _pooled_fifo(workload.arrival_s, workload.work_s, num_ranks) - workload.arrival_s


@compiled
def _pooled_fifo(
    arrival_s: NDArray[np.float64], work_s: NDArray[np.float64], num_ranks: int
) -> NDArray[np.float64]:
    free_s = [0.0 for _ in range(num_ranks)]
    finish_s = np.empty(len(arrival_s))
    for job in range(len(arrival_s)):
        done_s = max(arrival_s[job], free_s[0]) + work_s[job]
        heapq.heapreplace(free_s, done_s)
        finish_s[job] = done_s
    return finish_s
