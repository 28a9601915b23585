"""Idle time is what no instance's work covers of the time in which prompts waited."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from rorqual_runtime.span_files import Span

from bench.idle_time import idle_while_waiting, union, without

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def covered(intervals):
    return {tick for start, end in intervals for tick in range(start, end)}


@given(INTERVALS, st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_interval_arithmetic_is_that_of_sets(intervals, one):
    merged = union(intervals)
    assert covered(merged) == covered(intervals)
    assert all(first[1] < second[0] for first, second in pairwise(merged))
    assert covered(without(one, merged)) == covered([one]) - covered(intervals)


def span(trace_id, name, start_s, end_s, **attributes):
    return Span(trace_id, name, "", name, "prefill", int(start_s * 1e9), int(end_s * 1e9),
                attributes, False)  # fmt: skip


def job(trace_id, submitted_s, taken_s, done_s, prefill_id):
    return [
        span(trace_id, "prefill.queue", submitted_s, taken_s),
        span(trace_id, "prefill.assign", taken_s, taken_s, **{"rorqual.prefill_id": prefill_id}),
        span(trace_id, "prefill.handover", taken_s, done_s),
    ]


def test_an_instance_without_a_prompt_beside_one_that_waits_is_found():
    busy = job("a", 0.0, 0.0, 10.0, "p1")
    waited = job("b", 2.0, 6.0, 8.0, "p2")
    found = idle_while_waiting([*busy, *waited], ["p1", "p2"], grace_s=0.5)
    assert (found.waiting_s, found.idle_s, found.longest_s) == (3.5, 3.5, 3.5)
    other = job("c", 1.0, 1.0, 5.0, "p2")
    found = idle_while_waiting([*busy, *waited, *other], ["p1", "p2"], grace_s=0.5)
    assert (found.waiting_s, found.idle_s) == (3.5, 1.0)


def test_messages_on_their_way_are_no_waiting():
    found = idle_while_waiting(job("a", 0.0, 0.04, 1.0, "p1"), ["p1", "p2"], grace_s=0.05)
    assert (found.waiting_s, found.idle_s, found.longest_s) == (0.0, 0.0, 0.0)
