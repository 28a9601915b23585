"""Bar 6: length buckets that spill cost nothing, whatever the size of the fleet."""

from __future__ import annotations

from collections.abc import Iterator

from rorqual_sim.prefill import PrefillFleet

from bench.policy_bars.load import Load, our_capacity, pooled, rorqual, slo_capacity
from bench.policy_bars.registry import Figure, bar, least, most

_LARGE = 64
_LARGE_WINDOW_S = 600.0


def _buckets(load: Load, num_groups: int) -> Iterator[Figure]:
    fleet = PrefillFleet(num_groups)
    window_s = min(_LARGE_WINDOW_S, load.window_s) if num_groups >= _LARGE else load.window_s
    workload = load.workload(0.85, num_ranks=fleet.num_ranks, window_s=window_s)
    mean_s = [
        load.waits(load.run(policy, workload, fleet=fleet), workload).mean_s
        for policy in (rorqual(), pooled())
    ]
    load.forget()
    yield most(f"mean_ttft_buckets_over_pooled_{num_groups}", mean_s[0] / mean_s[1], "x", 1.03)
    ours = our_capacity(load, fleet=fleet, window_s=window_s)
    low, high = ours - 0.03, ours + 0.04
    without = slo_capacity(load, pooled(), low=low, high=high, fleet=fleet, window_s=window_s)
    yield least(f"slo_capacity_buckets_over_pooled_{num_groups}", ours / without, "x", 0.97)


@bar(6, minutes=2.0)
def buckets_small(load: Load) -> Iterator[Figure]:
    for num_groups in (4, 8, 16):
        yield from _buckets(load, num_groups)


@bar(6, minutes=1.5)
def buckets_large(load: Load) -> Iterator[Figure]:
    yield from _buckets(load, _LARGE)
