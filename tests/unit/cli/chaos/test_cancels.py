"""Where clients left is counted over all instances and their restarts; what is missing shows."""

from __future__ import annotations

from dataclasses import replace

from rorqual_cli.chaos.cancels import Cancelled, PhaseCounts
from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_runtime.cancelled import Phase

HIT_ALL = Cancelled(10, 3, dict.fromkeys(Phase, 1), held={}, settled_s=0.5)


def _report(instance_id: str, incarnation: int, **counts: int) -> LoadReport:
    report = LoadReport(instance_id=instance_id, incarnation=incarnation)
    report.cancelled_total.update(counts)
    return report


def test_counts_of_an_instance_that_was_started_again_add_up() -> None:
    counts = PhaseCounts()
    counts.hear(_report("decode-1", 1, decode=3))
    counts.hear(_report("decode-1", 1, decode=5, migrating=2))
    counts.hear(_report("decode-1", 2, decode=1))
    counts.hear(_report("router-1", 1, queued=4))
    found = counts.by_phase
    assert (found["decode"], found["migrating"], found["queued"], found["prefill"]) == (6, 2, 4, 0)


def test_a_phase_that_nobody_left_in_or_a_late_release_is_no_good_run() -> None:
    assert HIT_ALL.is_good
    assert not replace(HIT_ALL, by_phase={**HIT_ALL.by_phase, "migrating": 0}).is_good
    assert not replace(HIT_ALL, held={"decode-1": {"pages": 2}}).is_good
    assert not replace(HIT_ALL, settled_s=1.5).is_good
