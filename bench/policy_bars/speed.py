"""Bar 15: placement decisions a second on one core."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from rorqual_policy.placement_index import PlacementIndex

from bench.policy_bars.load import Load
from bench.policy_bars.registry import Figure, bar, least, most

_NUM = 200_000


@bar(15, needs_trace=False)
def placement_speed(_load: Load | None) -> Iterator[Figure]:
    for num_ranks, goal in ((128, 200e3), (4096, 50e3)):
        own_s, took_s = _placements(num_ranks)
        yield least(f"placements_per_s_{num_ranks}", _NUM / own_s, "1/s", goal)
        if num_ranks == 128:
            yield most("placement_p99", float(np.percentile(took_s, 99)) * 1e6, "us", 50.0)


def _placements(num_ranks: int) -> tuple[float, np.ndarray]:
    """Processor time of all decisions, and seconds of each: place a request's work, and learn what
    another rank has done."""
    rng = np.random.default_rng(0)
    work_s = rng.exponential(1.0, _NUM).tolist()
    finished = rng.integers(0, num_ranks, _NUM).tolist()
    index = PlacementIndex(rng.uniform(size=num_ranks).tolist())
    clock = time.perf_counter
    marks = np.empty(_NUM + 1)
    own_began_s = time.thread_time()
    marks[0] = clock()
    for number in range(_NUM):
        index.place(work_s[number])
        done = finished[number]
        index.set_load(done, max(0.0, index.load(done) - 1.0))
        marks[number + 1] = clock()
    return time.thread_time() - own_began_s, np.diff(marks)
