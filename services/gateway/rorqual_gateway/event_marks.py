"""Places in a streamed answer: the ids of its events, and back: pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rorqual_runtime.errors import InvalidRequest

from rorqual_gateway.sinks import Event, Position

MAX_MARK_CHARS = 512
_MARK = re.compile(
    r"(\d{1,9})\.(\d{1,9})\.((?:\d{1,9}(?:,\d{1,9})*)?)\.([a-z_]*(?:,[a-z_]*)*)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Mark:
    """Behind `num_frames` SSE frames of the messages from `next_seq` on.

    num_tokens, finish_reasons: by choice, what everything before `next_seq` was made of, so that
    an instance of recipe that knows nothing of this answer can go on there.
    """

    next_seq: int = 0
    num_frames: int = 0
    num_tokens: Sequence[int] = ()
    finish_reasons: Sequence[str] = ()

    def __str__(self) -> str:
        tokens = ",".join(map(str, self.num_tokens))
        return f"{self.next_seq}.{self.num_frames}.{tokens}.{','.join(self.finish_reasons)}"

    @property
    def position(self) -> Position:
        """Of the client, for a sink that goes on here."""
        return Position(self.num_tokens, self.finish_reasons)


def parse_mark(text: str) -> Mark:
    """The place an event's id stands for. Raises: InvalidRequest for what is none."""
    found = _MARK.fullmatch(text) if len(text) <= MAX_MARK_CHARS else None
    if found is None:
        raise InvalidRequest("Last-Event-ID is not the id of an event of ours")
    seq, frames, tokens, reasons = found.groups()
    num_tokens = tuple(int(number) for number in tokens.split(",") if number)
    return Mark(int(seq), int(frames), num_tokens, tuple(reasons.split(",")) if reasons else ())


class EventMarker:
    """Gives each frame its id; of an answer that is gone on with, leaves out what came already."""

    def __init__(self, start: Mark) -> None:
        self._at = Mark(start.next_seq, 0, start.num_tokens, start.finish_reasons)
        self._num_known = start.num_frames

    def frames(self, events: Sequence[Event]) -> list[bytes]:
        """What the client gets of these events."""
        return [frame for event in events for frame in self._frames_of(event)]

    @property
    def is_exact(self) -> bool:
        """Whether all that came already has been left out."""
        return self._num_known == 0

    def _frames_of(self, event: Event) -> list[bytes]:
        marked = []
        for index, frame in enumerate(event.data, start=1):
            self._pass(event, is_last=index == len(event.data))
            if self._num_known:
                self._num_known -= 1
            else:
                marked.append(b"id: " + str(self._at).encode() + b"\n" + frame)
        if not event.data:
            self._end(event)
        return marked

    def _pass(self, event: Event, *, is_last: bool) -> None:
        at = self._at
        self._at = Mark(at.next_seq, at.num_frames + 1, at.num_tokens, at.finish_reasons)
        if is_last:
            self._end(event)

    def _end(self, event: Event) -> None:
        """Behind a whole message an instance can go on, unless an event came in parts."""
        if event.num_tokens:
            reasons = tuple(event.finish_reasons) or self._at.finish_reasons
            self._at = Mark(event.seq + 1, 0, tuple(event.num_tokens), reasons)
