"""Events of a request: in order, once, bounded, and gone with the request."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_gateway.sinks import MAX_EARLY, Event, EventSink, Patience, SinkTable
from rorqual_runtime.clock import ManualClock

PATIENCE = Patience(max_bytes=100, max_s=5, most_bytes=1000)


def make_sink() -> EventSink:
    return EventSink(PATIENCE, ManualClock())


@given(st.permutations(range(8)), st.lists(st.integers(0, 7)))
def test_events_come_out_in_order_and_once(order: list[int], repeats: list[int]) -> None:
    async def run() -> list[int]:
        sink = make_sink()
        for seq in order + repeats:
            sink.push(Event(seq, [b"x"]))
        assert not sink.has_gap
        return [event.seq for event in await sink.take(0.1)]

    assert asyncio.run(run()) == list(range(8))


async def test_a_missing_event_holds_back_later_ones() -> None:
    sink = make_sink()
    sink.push(Event(1, [b"late"]))
    assert sink.has_gap
    assert await sink.take(0.01) == []
    sink.push(Event(0, [b"first"]))
    assert [event.data for event in await sink.take(0.01)] == [[b"first"], [b"late"]]
    assert not sink.has_gap


async def test_who_stays_behind_with_a_full_buffer_is_too_slow() -> None:
    clock = ManualClock()
    sink = EventSink(PATIENCE, clock)
    sink.push(Event(0, [b"x" * 60]))
    await sink.take(0.01)
    await clock.advance(60)
    sink.push(Event(1, [b"x" * 60]))
    await clock.advance(4)
    sink.push(Event(2, [b"x" * 60]))
    assert not sink.overflowed.is_set()
    await clock.advance(2)
    sink.push(Event(3, [b"x"]))
    assert sink.overflowed.is_set()


async def test_a_small_rest_may_wait() -> None:
    clock = ManualClock()
    sink = EventSink(PATIENCE, clock)
    sink.push(Event(0, [b"x" * 60]))
    await clock.advance(60)
    sink.push(Event(1, [b"x" * 30]))
    assert not sink.overflowed.is_set()


async def test_a_burst_is_not_the_clients_fault_but_bounded() -> None:
    sink = make_sink()
    for seq in range(10):
        sink.push(Event(seq, [b"x" * 100]))
    assert not sink.overflowed.is_set()
    sink.push(Event(10, [b"x"]))
    assert sink.overflowed.is_set()


async def test_a_body_larger_than_the_buffer_still_arrives() -> None:
    sink = make_sink()
    sink.push(Event(0, [b"x" * 5000], done=True))
    assert not sink.overflowed.is_set()


async def test_events_behind_a_gap_are_bounded_and_come_again_with_the_missing_one() -> None:
    sink = make_sink()
    for seq in [*range(1, MAX_EARLY + 50), *range(MAX_EARLY + 60)]:
        sink.push(Event(seq, []))
    assert not sink.overflowed.is_set()
    assert [event.seq for event in await sink.take(0.1)] == list(range(MAX_EARLY + 60))
    assert not sink.has_gap


async def test_a_sink_lives_as_long_as_its_request() -> None:
    sinks = SinkTable(ManualClock())
    with pytest.raises(KeyError), sinks.open("r1", PATIENCE) as sink:
        assert sinks.get("r1") is sink
        raise KeyError
    assert sinks.get("r1") is None
    assert len(sinks) == 0


async def test_only_the_instance_that_goes_on_is_heard() -> None:
    sink = make_sink()
    sink.push(Event(0, [b"a"], num_tokens=[1]))
    sink.push(Event(2, [b"early, of the lost one"], num_tokens=[3]))
    abandoned, taken = sink.claim_take_over(), sink.claim_take_over()
    sink.push(Event(1, [b"of neither"], num_tokens=[9], take_over=taken))
    sink.begin_take_over()
    assert not sink.has_gap
    for number, data in ((0, b"lost"), (abandoned, b"abandoned"), (taken, b"b")):
        sink.push(Event(1, [data], num_tokens=[2], take_over=number))
    assert [event.data for event in await sink.take(0.01)] == [[b"a"], [b"b"]]
    assert sink.next_seq == 2


def test_the_position_is_that_of_the_last_event_in_order() -> None:
    sink = make_sink()
    sink.push(Event(0, [b"a"], num_tokens=[1, 0], decode_ids=["d1", ""]))
    sink.push(Event(2, [b"c"], num_tokens=[9, 9]))
    assert (sink.position.num_tokens, sink.position.decode_ids) == ([1, 0], ["d1", ""])
    sink.push(Event(1, [b"b"], num_tokens=[1, 4], finish_reasons=["stop", ""]))
    assert (sink.position.num_tokens, sink.position.finish_reasons) == ([9, 9], ["stop", ""])
    assert sink.position.decode_ids == ["d1", ""]
    sink.push(Event(3, [b"half of a"]))
    assert not sink.position.is_exact
