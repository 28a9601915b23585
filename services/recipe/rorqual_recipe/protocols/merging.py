"""Neighbouring pieces of one kind become one: fewer frames when several tokens come at once."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rorqual_recipe.output.events import (
    AnswerEvent,
    ContentDelta,
    ReasoningDelta,
    ToolArgumentsDelta,
)


def merged(events: Sequence[AnswerEvent]) -> Sequence[AnswerEvent]:
    """The same events with adjoining deltas put together."""
    if len(events) < 2:
        return events
    result: list[AnswerEvent] = []
    for kind, run in groupby(events, key=_kind_of):
        same = list(run)
        result += same if kind is None or len(same) == 1 else [_joined(same)]
    return result


def only_content(events: Sequence[AnswerEvent]) -> str | None:
    """All the text when there is nothing but content, as nearly always; else None."""
    if len(events) == 1:
        event = events[0]
        return event.text if isinstance(event, ContentDelta) else None
    if set(map(type, events)) != _ONLY_CONTENT:
        return None
    return "".join([event.text for event in events])  # type: ignore[union-attr]


_ONLY_CONTENT = {ContentDelta}


def _kind_of(event: AnswerEvent) -> tuple[Any, ...] | None:
    """What adjoining events have in common that may be put together; None for all others."""
    if isinstance(event, ToolArgumentsDelta):
        return (ToolArgumentsDelta, event.index)
    return (type(event),) if isinstance(event, ContentDelta | ReasoningDelta) else None


def _joined(run: Sequence[Any]) -> AnswerEvent:
    first, text = run[0], "".join([event.text for event in run])
    if isinstance(first, ToolArgumentsDelta):
        return ToolArgumentsDelta(first.index, text)
    logprobs = tuple([entry for event in run for entry in event.logprobs])
    if isinstance(first, ReasoningDelta):
        return ReasoningDelta(text, logprobs)
    return ContentDelta(text, logprobs)
