"""Bar 15: placement decisions a second on one core, as the router makes them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from rorqual_policy import InstanceReport, PlacementParams, PlacementRequest
from rorqual_router.fleet import Fleet
from rorqual_runtime.clock import ManualClock

from bench.policy_bars.load import Load
from bench.policy_bars.registry import Figure, bar, least, most

_NUM, _BATCH = 200_000, 64
_PER_RANK_PER_S = 16
"""Placements: 128 running requests of 8 s each."""
_REPORT_S = 0.2


@bar(15, needs_trace=False)
def placement_speed(_load: Load | None) -> Iterator[Figure]:
    for num_ranks, goal in ((128, 200e3), (4096, 50e3)):
        took = _placements(num_ranks)
        yield least(f"placements_per_s_{num_ranks}", _NUM / took.placing_s, "1/s", goal)
        if num_ranks == 128:
            yield most("placement_p99", float(np.percentile(took.each_s, 99)) * 1e6, "us", 50.0)
        yield Figure(f"load_reports_per_s_{num_ranks}", took.num_reports / took.hearing_s, "1/s")


class _Clock(ManualClock):
    """The simulated fleet's time: it goes on between batches."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


@dataclass
class _Took:
    """Processor seconds."""

    placing_s: float = 0.0
    hearing_s: float = 0.0
    num_reports: int = 0
    each_s: list[float] = field(default_factory=list)
    """Of each placement, by the clock on the wall."""


def _placements(num_ranks: int) -> _Took:
    """A fleet in balance: what is placed counts until it has settled, and every instance reports
    in turn."""
    rng = np.random.default_rng(0)
    contexts = rng.lognormal(8.5, 1.2, _NUM).astype(int).clip(1, 200_000).tolist()
    requests = [PlacementRequest(f"r{n}/0", c, 512) for n, c in enumerate(contexts)]
    clock, took, due = _Clock(), _Took(), 0.0
    fleet = Fleet(clock, PlacementParams(reserved_new_tokens=128))
    running = rng.integers(96, 160, (64, num_ranks)).tolist()
    for rank in range(num_ranks):
        fleet.on_report(_report(rank, 0, running[0][rank]))
    for first in range(0, _NUM, _BATCH):
        clock.now_s += _BATCH / (num_ranks * _PER_RANK_PER_S)
        due += _BATCH / (_PER_RANK_PER_S * _REPORT_S)
        _hear(fleet, took, running, num_ranks, due)
        _place(fleet, took, requests[first : first + _BATCH])
    return took


def _hear(fleet: Fleet, took: _Took, running: list[list[int]], num_ranks: int, due: float) -> None:
    """Take in as many reports as are due by now."""
    numbers = range(took.num_reports, int(due))
    turns = [(number % num_ranks, 1 + number // num_ranks) for number in numbers]
    reports = [_report(rank, seq, running[seq % len(running)][rank]) for rank, seq in turns]
    began_s = time.thread_time()
    for report in reports:
        fleet.on_report(report)
    took.hearing_s += time.thread_time() - began_s
    took.num_reports += len(reports)


def _place(fleet: Fleet, took: _Took, requests: list[PlacementRequest]) -> None:
    clock = time.perf_counter
    placed: list[str | None] = []
    marks = [clock()]
    began_s = time.thread_time()
    for request in requests:
        placed.append(fleet.place(request).instance_id)
        marks.append(clock())
    took.placing_s += time.thread_time() - began_s
    took.each_s += np.diff(marks).tolist()
    assert None not in placed


def _report(rank: int, seq: int, num_running: int) -> InstanceReport:
    return InstanceReport(
        "decode",
        f"decode-{rank}",
        incarnation=1,
        seq=1 + seq,
        num_running=num_running,
        max_running=1 << 20,
        kv_tokens=num_running * 8192,
        num_total_pages=1 << 40,
    )
