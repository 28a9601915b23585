"""The view of the fleet: fresh and without ghosts."""

from dataclasses import replace

import pytest
from rorqual_policy import InstanceReport, LoadView

REPORT = InstanceReport("decode", "d0", incarnation=5, seq=1, num_running=2)


def seen(*reports, now_s=100.0):
    view = LoadView()
    for report in reports:
        view.observe(report, now_s)
    return view


def test_stale_is_not_full_and_silent_is_gone():
    view = seen(REPORT)
    assert list(view.live("decode", 101.9)) == [REPORT]
    assert list(view.live("decode", 102.1)) == []
    assert view.drop_silent(101.9) == []
    assert view.drop_silent(102.1) == [REPORT]
    assert view.drop_silent(102.1) == []


def test_draining_instances_get_nothing_and_are_not_silent():
    view = seen(replace(REPORT, draining=True))
    assert list(view.live("decode", 100.0)) == []
    assert not view.is_silent("decode", "d0", 101.9)
    assert view.is_silent("decode", "d0", 102.1)
    assert view.is_silent("prefill", "d0", 100.0)


@pytest.mark.parametrize(
    "late", [{"incarnation": 4, "seq": 99}, {"seq": 1, "num_running": 7}, {"seq": 0}]
)
def test_reports_of_an_older_run_or_out_of_order_are_ignored(late):
    view = seen(REPORT)
    assert not view.observe(replace(REPORT, **late), 101.0)
    assert list(view.live("decode", 101.0)) == [REPORT]
    assert view.is_silent("decode", "d0", 102.1)  # nor is it a sign of life


def test_a_restart_counts_from_its_first_report():
    view = seen(REPORT, again := replace(REPORT, incarnation=6, seq=0))
    assert list(view.live("decode", 100.0)) == [again]
