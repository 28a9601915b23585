"""Bar 15: decisions of a router on one core, as it makes them: placements, and who pulls what."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from rorqual_policy import InstanceReport, PlacementParams, PlacementRequest
from rorqual_policy.fair_share import FairShare
from rorqual_policy.prefill_line import PrefillLine, Puller, WaitingPrompt, choose_pull, line_params
from rorqual_policy.prefill_order import SHORT_FIRST
from rorqual_policy.prefill_policy import rorqual_policy
from rorqual_policy.step_cost import STUDY_COST
from rorqual_router.fleet import Fleet
from rorqual_runtime.clock import ManualClock

from bench.policy_bars.load import Load
from bench.policy_bars.registry import Figure, bar, least, most

_NUM, _BATCH = 200_000, 64
_PER_RANK_PER_S = 16
"""Placements: 128 running requests of 8 s each."""
_REPORT_S = 0.2
_NUM_INSTANCES, _NUM_HEADS, _NUM_PULLS = 300, 400, 200


@bar(15, needs_trace=False)
def placement_speed(_load: Load | None) -> Iterator[Figure]:
    for num_ranks, goal in ((128, 200e3), (4096, 50e3)):
        took = _placements(num_ranks)
        yield least(f"placements_per_s_{num_ranks}", _NUM / took.placing_s, "1/s", goal)
        if num_ranks == 128:
            yield most("placement_p99", float(np.percentile(took.each_s, 99)) * 1e6, "us", 50.0)
        yield Figure(f"load_reports_per_s_{num_ranks}", took.num_reports / took.hearing_s, "1/s")


@bar(15, needs_trace=False)
def pull_speed(_load: Load | None) -> Iterator[Figure]:
    """Of a line of 100 tenants with prompts of all lengths, before many instances."""
    for name, pending_s in (("idle", (0.0,)), ("busy", (0.0, 0.05, 0.3, 2.0)), ("full", (3.0,))):
        took_s = _pull_s(pending_s)
        yield most(f"pull_decision_{name}", took_s * 1e3, "ms", 1.0, "300 instances, 400 heads")


def _pull_s(pending_s: Sequence[float]) -> float:
    """CPU seconds of one decision, with the line's own part."""
    rng = np.random.default_rng(0)
    line, fair = PrefillLine(SHORT_FIRST), FairShare()
    for number in range(4 * _NUM_HEADS):
        tenant, bucket = f"t{number % (_NUM_HEADS // 4)}", number // (_NUM_HEADS // 4) % 4
        work_s = float(rng.uniform(0.01, 0.5)) * 4**bucket
        line.add(WaitingPrompt(str(number), tenant, bucket, float(rng.uniform(0, 10)), work_s))
    busy_s = rng.choice(pending_s, _NUM_INSTANCES) * rng.uniform(0.5, 1.0, _NUM_INSTANCES)
    pullers = [
        Puller(f"p{i}", own_s, 0.6 * own_s, speed=0.8 + 0.4 * i / _NUM_INSTANCES)
        for i, own_s in enumerate(busy_s.tolist())
    ]
    params = line_params(
        rorqual_policy(STUDY_COST), STUDY_COST, waiting_s=100.0, num_ranks=_NUM_INSTANCES,
        own_buckets={}, quantum_s=0.25, weights={},
    )  # fmt: skip
    fair = choose_pull(line.heads(), pullers, fair, params).fair
    began_s = time.thread_time()
    for _ in range(_NUM_PULLS):
        choice = choose_pull(line.heads(), pullers, fair, params)
        fair = choice.fair
        if choice.job_id is not None:
            line.remove(choice.job_id)
    return (time.thread_time() - began_s) / _NUM_PULLS


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
