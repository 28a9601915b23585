"""Bars 1 to 5, 7 and 8: how long prompts wait for their first token."""

from __future__ import annotations

from collections.abc import Iterator

from rorqual_policy.prefill_policy import STEP_LIMIT_S
from rorqual_policy.step_cost import STUDY_COST
from rorqual_sim import prefill_state as rule
from rorqual_sim.prefill import PushRule

from bench.policy_bars.load import (
    COMPARATOR,
    FIXED_CHUNK,
    SLOW_START,
    Load,
    deepseek_spill,
    fixed_budget,
    in_order,
    our_capacity,
    rorqual,
    slo_capacity,
)
from bench.policy_bars.registry import Figure, bar, least, most

_LOCAL_S = 900.0
_SATURATED_SHARE = 1.4
_SATURATED_S = 400.0


@bar(1, minutes=1.0)
def capacity(load: Load) -> Iterator[Figure]:
    ours = our_capacity(load)
    yield least("slo_capacity", ours, "share", 0.97)
    if load.kind == "other":
        return
    times = 4.0 if load.kind == "agentic" else 2.0
    for name, placement in (("least_requests", rule.LEAST_REQUESTS), ("p2c", rule.POWER_OF_TWO)):
        theirs = slo_capacity(
            load,
            COMPARATOR,
            low=0.02,
            high=0.98,
            step=0.02,
            push=PushRule(placement),
            chunk_tokens=FIXED_CHUNK,
        )
        yield least(f"slo_capacity_over_{name}", ours / theirs, "x", times, f"{theirs:.2f}")


@bar(1, minutes=1.5)
def capacity_local(load: Load) -> Iterator[Figure]:
    """Peers that keep prefixes per rank, with chunks of the same cost model."""
    if load.kind != "conversation":
        return
    ours = our_capacity(load)
    for name, placement, goal in (
        ("sglang", rule.CACHE_AWARE, 1.30),
        ("dynamo", rule.KV_COST, 1.25),
        ("lmetric", rule.LMETRIC, None),
    ):
        theirs = slo_capacity(
            load, COMPARATOR, low=0.4, high=1.0, step=0.02, push=PushRule(placement, _LOCAL_S)
        )
        yield Figure(f"slo_capacity_over_{name}", ours / theirs, "x", goal, note=f"{theirs:.2f}")


@bar(2)
def mean_wait(load: Load) -> Iterator[Figure]:
    for name, cost, goal in (("", STUDY_COST, 0.60), ("_slow_start", SLOW_START, 0.92)):
        workload = load.workload(0.85, cost)
        ours = load.waits(load.run(rorqual(cost), workload, cost), workload, cost)
        theirs = load.waits(load.run(deepseek_spill(cost), workload, cost), workload, cost)
        yield most(f"mean_ttft_over_deepseek_spill{name}", ours.mean_s / theirs.mean_s, "x", goal)
        if cost is not STUDY_COST:
            continue
        bound = load.bound(workload)
        yield most("mean_ttft_over_bound", ours.mean_s / bound.mean_s, "x", 2.0)
        yield most("p99_ttft_over_deepseek_spill", ours.p99_s / theirs.p99_s, "x", 1.15)


@bar(3, minutes=0.7)
def median_wait(load: Load) -> Iterator[Figure]:
    workload = load.workload(0.70)
    ours = load.waits(load.run(rorqual(), workload), workload)
    theirs = load.waits(load.run(COMPARATOR, workload), workload)
    yield most("p50_ttft_over_fixed_budget", ours.p50_s / theirs.p50_s, "x", 0.35)
    adaptive = slo_capacity(load, rorqual(), low=0.94, high=1.05, step=0.005)
    fixed = slo_capacity(load, fixed_budget(), low=0.94, high=1.05, step=0.005)
    yield most("slo_capacity_lost_to_short_steps", fixed - adaptive, "share", 0.0099)


@bar(4)
def bursts(load: Load) -> Iterator[Figure]:
    workload = load.workload(0.85, burst=True)
    ours = load.waits(load.run(rorqual(), workload), workload)
    fifo = load.waits(load.run(in_order(), workload), workload)
    yield most("burst_slo_misses", ours.miss, "share", 0.01, f"in order of arrival {fifo.miss:.3f}")
    yield most("burst_mean_ttft_over_fifo", ours.mean_s / fifo.mean_s, "x", 0.35)
    if fifo.p99_64k_256k_s:
        ratio = ours.p99_64k_256k_s / fifo.p99_64k_256k_s
        yield most("burst_p99_of_64k_256k_over_fifo", ratio, "x", 4.0)


@bar(5, minutes=0.9)
def pull_or_push(load: Load) -> Iterator[Figure]:
    workload = load.workload(0.85)
    push = PushRule(rule.LEAST_WORK)
    pulled = load.waits(load.run(rorqual(), workload), workload)
    pushed = load.waits(load.run(rorqual(), workload, push=push), workload)
    yield most("mean_ttft_pull_over_push", pulled.mean_s / pushed.mean_s, "x", 0.92)
    theirs = slo_capacity(load, rorqual(), low=0.88, high=1.05, push=push)
    ours = our_capacity(load)
    yield least("slo_capacity_pull_over_push", ours / theirs, "x", 0.98)


@bar(7)
def chunk_solver(load: Load) -> Iterator[Figure]:
    workload = load.workload(_SATURATED_SHARE, window_s=_SATURATED_S)
    solved = load.run(COMPARATOR, workload).steps
    yield most("step_over_budget", solved.largest_excess_s * 1e3, "ms", 1e-9)
    yield least("least_fill_while_work_waits", solved.least_fill, "share", 0.98)
    yield most("saturated_step_cv", solved.cv, "ratio", 0.03)
    limit = 1 - STUDY_COST.a0_s / STEP_LIMIT_S
    yield least("saturated_efficiency_over_limit", solved.efficiency / limit, "x", 0.985)
    fixed = load.run(COMPARATOR, workload, chunk_tokens=FIXED_CHUNK).steps
    goal = {"agentic": 1.40, "conversation": 1.10}.get(load.kind)
    ratio = solved.efficiency / fixed.efficiency
    yield Figure("saturated_efficiency_over_fixed_16k", ratio, "x", goal)


@bar(8)
def noisy_estimates(load: Load) -> Iterator[Figure]:
    for name, burst in (("", False), ("burst_", True)):
        workload = load.workload(0.85, burst=burst)
        exact = load.waits(load.run(rorqual(), workload), workload)
        noisy = load.waits(load.run(rorqual(), workload, noise=0.5), workload)
        if not burst:
            yield most("noise_mean_ttft", noisy.mean_s / exact.mean_s, "x", 1.03)
        goal = 1.15 if burst else 1.05
        yield most(f"noise_{name}p99_ttft", noisy.p99_s / exact.p99_s, "x", goal)
    wild = load.waits(load.run(rorqual(), workload, noise=0.5, is_bounded=False), workload)
    note = "estimates may exceed the cost of the whole prompt"
    yield Figure("noise_burst_p99_ttft_unbounded", wild.p99_s / exact.p99_s, "x", note=note)
