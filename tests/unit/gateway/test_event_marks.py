"""Ids of events say where an answer goes on, exactly: no frame twice, none missing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_gateway.event_marks import EventMarker, Mark, parse_mark
from rorqual_gateway.sinks import Event
from rorqual_runtime.errors import InvalidRequest

REASONS = st.sampled_from(["", "stop", "length", "tool_calls"])
MARKS = st.builds(
    Mark,
    st.integers(0, 10**9 - 1),
    st.integers(0, 10**9 - 1),
    st.lists(st.integers(0, 10**9 - 1), max_size=4).map(tuple),
    st.lists(REASONS, min_size=2, max_size=4).map(tuple),
)


@settings(deadline=None)
@given(MARKS)
def test_an_id_is_read_back(mark: Mark) -> None:
    assert parse_mark(str(mark)) == mark


@pytest.mark.parametrize(
    "text", ["", "1.2.3", "a.0..", "1.0.3.STOP", "1..3.", "9" * 600, "1.0." + "1," * 400, "١.0.."]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Last-Event-ID"):
        parse_mark(text)


@st.composite
def answers(draw: st.DrawFn) -> list[Event]:
    """Messages of some frames each; of one that came in parts only the last has token counts."""
    events = []
    for seq in range(draw(st.integers(1, 6))):
        num_frames = draw(st.integers(0, 3))
        data = [f"data: {seq}/{frame}\n\n".encode() for frame in range(num_frames)]
        is_part = draw(st.booleans())
        events.append(Event(seq, data, num_tokens=() if is_part else (seq + 1,)))
    return events


def _split(marked: bytes) -> tuple[str, bytes]:
    line, _, frame = marked.partition(b"\n")
    return line.decode().removeprefix("id: "), frame


@settings(deadline=None)
@given(answers(), st.data())
def test_behind_any_event_come_all_others_and_only_they(
    events: list[Event], data: st.DataObject
) -> None:
    marked = [_split(frame) for frame in EventMarker(Mark()).frames(events)]
    if not marked:
        return
    at = data.draw(st.integers(0, len(marked) - 1))
    mark = parse_mark(marked[at][0])
    marker = EventMarker(mark)
    rest = [_split(f) for f in marker.frames([e for e in events if e.seq >= mark.next_seq])]
    assert rest == marked[at + 1 :]
    assert marker.is_exact


@settings(deadline=None)
@given(answers())
def test_an_id_knows_how_many_tokens_are_behind_it(events: list[Event]) -> None:
    for marked in EventMarker(Mark()).frames(events):
        mark = parse_mark(_split(marked)[0])
        before = [event.num_tokens for event in events[: mark.next_seq] if event.num_tokens]
        assert tuple(mark.num_tokens) == (tuple(before[-1]) if before else ())
