"""Decode instances' loads: with what was just placed, and the right ones looked at among many."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy import (
    DecodeInstance,
    InstanceReport,
    PlacementParams,
    PlacementRequest,
    choose_decode,
    num_pages_needed,
)
from rorqual_policy.decode_loads import DecodeLoads

PARAMS = PlacementParams()
REPORT = InstanceReport(
    "decode", "d0", incarnation=5, seq=1, num_total_pages=100, num_used_pages=10,
    num_running=2, max_running=8, kv_tokens=500,
)  # fmt: skip
WANTED = PlacementRequest("r1", 300, 100)


def heard(*reports, now_s=100.0, params=PARAMS):
    loads = DecodeLoads(params)
    for report in reports or (REPORT,):
        loads.hear(report, now_s)
    return loads


def place(loads, request=WANTED, now_s=100.0, params=PARAMS):
    """The chosen instance's id, counted from now on."""
    chosen = choose_decode(loads.candidates(request, params, now_s), request, params).instance_id
    if chosen is not None:
        loads.note(chosen, request, num_pages_needed(request, params), now_s)
    return chosen


def running(loads, now_s):
    loads.candidates(WANTED, PARAMS, now_s)  # what has settled by then counts no more
    return [load.num_running for load in loads.instances]


def test_a_placement_counts_at_once():
    loads = heard()
    assert place(loads) == "d0"
    (load,) = loads.instances
    assert (load.num_running, load.kv_tokens, load.num_free_pages) == (3, 800, 86)


def test_a_report_that_shows_the_arrival_replaces_the_placement():
    loads = heard()
    place(loads)
    loads.hear(replace(REPORT, seq=2, num_running=3, kv_tokens=810, num_used_pages=14), 100.2)
    assert loads.instances == [DecodeInstance("d0", 3, 8, 810, 86, 100)]
    assert running(loads, 101.5) == [3]


def test_a_report_without_the_arrival_leaves_the_placement_until_it_has_settled():
    loads = heard()
    place(loads)
    loads.hear(replace(REPORT, seq=2), 100.2)
    assert running(loads, 100.9) == [3]
    assert running(loads, 101.1) == [2]
    assert loads.instances == [DecodeInstance("d0", 2, 8, 500, 90, 100)]


def test_a_placement_that_is_asked_for_again_counts_once_and_a_refused_one_not_at_all():
    loads = heard(REPORT, replace(REPORT, instance_id="d1", num_running=5))
    assert (place(loads), place(loads)) == ("d0", "d0")
    assert running(loads, 100.0) == [3, 5]
    assert place(loads, replace(WANTED, excluded_ids=frozenset({"d0"}))) == "d1"
    assert running(loads, 100.0) == [2, 6]
    assert running(loads, 101.1) == [2, 5]


def test_a_restart_forgets_what_was_placed_before():
    loads = heard()
    place(loads)
    loads.hear(replace(REPORT, incarnation=6, seq=0, num_running=0), 100.1)
    assert running(loads, 100.1) == [0]
    assert running(loads, 101.5) == [0]


def test_silent_and_draining_instances_get_nothing():
    loads = heard(REPORT, replace(REPORT, instance_id="d1", num_running=5))
    loads.hear(replace(REPORT, instance_id="d1", seq=2, num_running=5), 101.5)
    assert place(loads, now_s=102.1) == "d1"  # nothing was heard of the other for two seconds
    loads.hear(replace(REPORT, instance_id="d1", seq=3, draining=True), 102.2)
    assert place(loads, now_s=102.2) is None
    assert len(loads) == 1


@given(st.integers(1, 60), st.integers(2, 6))
def test_placements_between_two_reports_do_not_herd(num_requests, num_instances):
    room = {"max_running": 100, "num_total_pages": 10_000}
    loads = heard(*(replace(REPORT, instance_id=f"d{i}", **room) for i in range(num_instances)))
    counts = Counter(
        place(loads, PlacementRequest(f"r{number}", 300, 10)) for number in range(num_requests)
    )
    assert max(counts.values()) - min(counts.get(f"d{i}", 0) for i in range(num_instances)) <= 1


@st.composite
def reports(draw):
    return InstanceReport(
        "decode",
        f"d{draw(st.integers(0, 5))}",
        incarnation=draw(st.integers(1, 2)),
        seq=0,
        draining=draw(st.integers(0, 9)) == 0,
        num_running=draw(st.integers(0, 8)),
        max_running=draw(st.integers(1, 9)),
        kv_tokens=draw(st.integers(0, 10**6)),
        num_used_pages=draw(st.integers(0, 20)),
        num_total_pages=20,
    )


class Scan:
    """The same by looking at everything each time."""

    def __init__(self):
        self.reports, self.heard_s, self.in_flight = {}, {}, {}

    def hear(self, report, now_s):
        who = report.instance_id
        before = self.reports.get(who)
        if report.draining or before is None or before.incarnation != report.incarnation:
            self.in_flight[who] = []
        else:
            arrived = max(0, report.num_running - before.num_running)
            self.in_flight[who] = self.in_flight[who][arrived:]
        self.reports[who], self.heard_s[who] = report, now_s
        if report.draining:
            del self.reports[who]

    def loads(self, now_s):
        return [self.load(who, now_s) for who in self.reports if now_s - self.heard_s[who] <= 2.0]

    def load(self, who, now_s):
        report = self.reports[who]
        kept = [p for p in self.in_flight[who] if now_s <= p[0]]
        self.in_flight[who] = kept
        return DecodeInstance(
            who,
            report.num_running + len(kept),
            report.max_running,
            report.kv_tokens + sum(p[1] for p in kept),
            report.num_total_pages - report.num_used_pages - sum(p[2] for p in kept),
            report.num_total_pages,
        )


@given(
    st.lists(
        st.tuples(
            st.sampled_from((0.0, 0.1, 0.7)),
            st.one_of(reports(), st.integers(1, 4000)),
            st.sets(st.integers(0, 5), max_size=3),
        ),
        max_size=40,
    ),
    st.integers(1, 9),
)
def test_whatever_happened_the_choice_is_that_of_a_scan(events, num_deciders):
    params = PlacementParams(num_deciders=num_deciders, reserved_new_tokens=1)
    loads, scan, now_s = DecodeLoads(params), Scan(), 100.0
    for number, (wait_s, event, excluded) in enumerate(events):
        now_s += wait_s
        if isinstance(event, InstanceReport):
            loads.hear(event, now_s)
            scan.hear(event, now_s)
            continue
        excluded_ids = frozenset(f"d{i}" for i in excluded)
        wanted = PlacementRequest(f"r{number}", event, 1, excluded_ids)
        expected = choose_decode(scan.loads(now_s), wanted, params)
        found = choose_decode(loads.candidates(wanted, params, now_s), wanted, params)
        assert (found.instance_id, found.outcome) == (expected.instance_id, expected.outcome)
        if found.instance_id is not None:
            num_pages = num_pages_needed(wanted, params)
            loads.note(found.instance_id, wanted, num_pages, now_s)
            scan.in_flight[found.instance_id].append((now_s + 1.0, event, num_pages))
    loads.candidates(WANTED, params, now_s)
    known = {load.instance_id: load for load in loads.instances}
    assert all(known[load.instance_id] == load for load in scan.loads(now_s))


def test_few_are_looked_at_among_many_others_on_each_router():
    fleet = [replace(REPORT, instance_id=f"d{i}", num_running=i % 60) for i in range(4000)]
    room = {"max_running": 64, "num_total_pages": 10_000}
    looked_at = []
    for salt in ("router-1", "router-2"):
        loads = DecodeLoads(PARAMS, salt=salt)
        for report in fleet:
            loads.hear(replace(report, **room), 100.0)
        found = loads.candidates(WANTED, PARAMS, 100.0)
        assert {load.num_running for load in found} == {0}
        looked_at.append({load.instance_id for load in found})
    assert len(looked_at[0]) == len(looked_at[1]) == 32  # of 67 equal ones
    assert looked_at[0] != looked_at[1]


@pytest.mark.parametrize("busy", [{"num_running": 8}, {"num_used_pages": 98}])
def test_full_ones_hide_nobody_with_room(busy):
    full = [replace(REPORT, instance_id=f"f{i}", **busy) for i in range(500)]
    loads = heard(*full, replace(REPORT, instance_id="last", num_running=7, kv_tokens=10**7))
    assert place(loads) == "last"
