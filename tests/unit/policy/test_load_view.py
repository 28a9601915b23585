"""The view of the fleet: fresh, without ghosts, and with what was just placed."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy import (
    InFlight,
    InstanceKey,
    InstanceReport,
    LoadView,
    PlacementRequest,
    choose_decode,
    decode_snapshot,
    drop_silent,
    forget_placement,
    note_placement,
    num_live,
    observe_report,
)

KEY = InstanceKey("decode", "d0")
REPORT = InstanceReport(
    "decode", "d0", incarnation=5, seq=1, num_total_pages=100, num_used_pages=10,
    num_running=2, max_running=8, kv_tokens=500,
)  # fmt: skip


def seen(report=REPORT, now_s=100.0, view=None):
    return observe_report(view or LoadView(), report, now_s)


def placed(request_id="r1", at_s=100.0):
    return InFlight(request_id, num_tokens=300, num_pages=4, placed_s=at_s)


def only(view, now_s):
    (instance,) = decode_snapshot(view, now_s)
    return instance


def test_stale_is_not_full_and_silent_is_gone():
    view = seen()
    assert only(view, 101.9).num_running == 2
    assert decode_snapshot(view, 102.1) == []
    assert drop_silent(view, 101.9) is view
    assert drop_silent(view, 102.1).instances == {}


def test_draining_instances_get_nothing():
    view = seen(replace(REPORT, draining=True))
    assert decode_snapshot(view, 100.0) == []
    assert num_live(view, "decode", 100.0) == 0


def test_a_placement_counts_at_once():
    view = note_placement(seen(), KEY, placed())
    instance = only(view, 100.1)
    assert (instance.num_running, instance.kv_tokens, instance.num_free_pages) == (3, 800, 86)


def test_a_report_that_shows_the_arrival_replaces_the_placement():
    view = note_placement(seen(), KEY, placed())
    view = seen(replace(REPORT, seq=2, num_running=3, kv_tokens=800), 100.2, view)
    assert only(view, 100.2).num_running == 3


def test_a_report_without_the_arrival_leaves_the_placement_until_it_has_settled():
    view = note_placement(seen(), KEY, placed())
    view = seen(replace(REPORT, seq=2), 100.2, view)
    assert only(view, 100.3).num_running == 3
    view = seen(replace(REPORT, seq=3), 101.5, view)
    assert only(view, 101.5).num_running == 2


def test_a_refused_placement_no_longer_counts():
    view = forget_placement(note_placement(seen(), KEY, placed()), "decode", "r1")
    assert only(view, 100.1).num_running == 2


def test_a_restart_forgets_what_was_placed_before():
    view = note_placement(seen(), KEY, placed())
    view = seen(replace(REPORT, incarnation=6, seq=0, num_running=0), 100.1, view)
    assert only(view, 100.1).num_running == 0


def test_reports_of_an_older_run_or_out_of_order_are_ignored():
    view = seen()
    assert seen(replace(REPORT, incarnation=4, seq=99, num_running=7), 100.1, view) is view
    assert seen(replace(REPORT, seq=1, num_running=7), 100.1, view) is view
    assert seen(replace(REPORT, seq=0, num_running=7), 100.1, view) is view


@given(st.integers(1, 60), st.integers(2, 6))
def test_placements_between_two_reports_do_not_herd(num_requests, num_instances):
    view = LoadView()
    for i in range(num_instances):
        report = replace(REPORT, instance_id=f"d{i}", max_running=100, num_total_pages=10_000)
        view = observe_report(view, report, 0.0)
    counts = dict.fromkeys((f"d{i}" for i in range(num_instances)), 0)
    for number in range(num_requests):
        wanted = PlacementRequest(f"r{number}", 300, 10)
        chosen = choose_decode(decode_snapshot(view, 0.1), wanted).instance_id
        counts[chosen] += 1
        key = InstanceKey("decode", chosen)
        view = note_placement(view, key, InFlight(f"r{number}", 300, 4, 0.1))
    assert max(counts.values()) - min(counts.values()) <= 1
