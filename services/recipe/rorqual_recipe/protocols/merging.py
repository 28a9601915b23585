"""Neighbouring pieces of one kind become one: fewer frames when several tokens come at once."""

from collections.abc import Sequence

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
    start = 0
    while start < len(events):
        end = start + 1
        while end < len(events) and _continues(events[start], events[end]):
            end += 1
        run = events[start:end]
        result.append(_joined(run) if len(run) > 1 else run[0])
        start = end
    return result


def _continues(first: AnswerEvent, event: AnswerEvent) -> bool:
    if type(first) is not type(event):
        return False
    if isinstance(first, ToolArgumentsDelta) and isinstance(event, ToolArgumentsDelta):
        return first.index == event.index
    return isinstance(first, ContentDelta | ReasoningDelta)


def _joined(run: Sequence[AnswerEvent]) -> AnswerEvent:
    text = "".join(event.text for event in run)  # type: ignore[union-attr]
    first = run[0]
    if isinstance(first, ToolArgumentsDelta):
        return ToolArgumentsDelta(first.index, text)
    logprobs = tuple(entry for event in run for entry in event.logprobs)  # type: ignore[union-attr]
    if isinstance(first, ReasoningDelta):
        return ReasoningDelta(text, logprobs)
    return ContentDelta(text, logprobs)
