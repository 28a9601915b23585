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

TextDelta = ContentDelta | ReasoningDelta


def merged(events: Sequence[AnswerEvent]) -> Sequence[AnswerEvent]:
    """The same events with adjoining deltas put together."""
    if len(events) < 2:
        return events
    result: list[AnswerEvent] = []
    for kind, run in groupby(events, key=_kind_of):
        same = list(run)
        result += same if kind is None or len(same) == 1 else [_joined(same)]
    return result


def only_text(events: Sequence[AnswerEvent]) -> tuple[type[TextDelta], str] | None:
    """All the text when it is content only or reasoning only, as nearly always; else None."""
    if len(events) == 1:
        event = events[0]
        return (type(event), event.text) if isinstance(event, TextDelta) else None
    kinds = set(map(type, events))
    if kinds == _CONTENT:
        return ContentDelta, "".join([event.text for event in events])  # type: ignore[union-attr]
    if kinds == _REASONING:
        return ReasoningDelta, "".join([event.text for event in events])  # type: ignore[union-attr]
    return None


_CONTENT = {ContentDelta}
_REASONING = {ReasoningDelta}


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
