"""Events of the token being read."""

from rorqual_recipe.output.events import (
    AnswerEvent,
    ContentDelta,
    ReasoningDelta,
    ToolArgumentsDelta,
)


class EventBuffer:
    """Collects events until they are taken; neighbours of one kind become one."""

    def __init__(self) -> None:
        self._events: list[AnswerEvent] = []

    def add(self, event: AnswerEvent) -> None:
        """One more event."""
        last = self._events[-1] if self._events else None
        if isinstance(event, ContentDelta) and isinstance(last, ContentDelta):
            event = ContentDelta(last.text + event.text, last.logprobs + event.logprobs)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            event = ReasoningDelta(last.text + event.text, last.logprobs + event.logprobs)
        elif isinstance(event, ToolArgumentsDelta) and isinstance(last, ToolArgumentsDelta):
            event = ToolArgumentsDelta(event.index, last.text + event.text)
        else:
            self._events.append(event)
            return
        self._events[-1] = event

    def take(self) -> list[AnswerEvent]:
        """All of them, once."""
        events, self._events = self._events, []
        return events
