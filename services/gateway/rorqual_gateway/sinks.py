"""Where events of live requests arrive: in order, bounded, and gone with the request."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rorqual_gateway.errors import HttpError

MAX_EARLY = 256
BURST_S = 1.0
BURST_FACTOR = 32


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one request. reasoning is part of completion."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0


@dataclass(slots=True)
class Event:
    """What recipe said about one request. data: SSE frames, or parts of the one JSON body.

    usage: tokens so far; final in the last event.
    """

    seq: int
    data: Sequence[bytes]
    done: bool = False
    error: HttpError | None = None
    usage: TokenUsage | None = None
    finish_reasons: Sequence[str] = ()


class EventSink:
    """Events of one request in the order of their seq, each once.

    max_bytes: what may wait to be taken for longer than a moment, a burst may be much more; beyond
    that `overflowed` is set. next_seq: the event awaited.
    """

    def __init__(self, max_bytes: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self._clock_s = clock_s
        self._full_since_s: float | None = None
        self._ready: deque[Event] = deque()
        self._early: dict[int, Event] = {}
        self._num_bytes = 0
        self.next_seq = 0
        self._wake = asyncio.Event()
        self.overflowed = asyncio.Event()

    @property
    def has_gap(self) -> bool:
        """True while an event is missing and later ones are here."""
        return bool(self._early)

    def push(self, event: Event) -> None:
        """Take an event; duplicates are dropped, early ones wait for their turn."""
        if event.seq != self.next_seq:
            self._push_out_of_turn(event)
            return
        self._append(event)
        while self._early and (follower := self._early.pop(self.next_seq, None)) is not None:
            self._append(follower)
        self._wake.set()

    async def take(self, timeout_s: float) -> list[Event]:
        """Everything that is ready, at least one event; [] when nothing came in time."""
        if not self._ready:
            self._wake.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                return []
        events = list(self._ready)
        self._ready.clear()
        self._num_bytes = 0
        self._full_since_s = None
        return events

    def _push_out_of_turn(self, event: Event) -> None:
        if event.seq < self.next_seq:
            return
        self._early[event.seq] = event
        if len(self._early) > MAX_EARLY:
            self.overflowed.set()

    def _append(self, event: Event) -> None:
        self.next_seq += 1
        self._ready.append(event)
        for item in event.data:
            self._num_bytes += len(item)
        if self._num_bytes > self.max_bytes and not event.done:
            self._note_full()

    def _note_full(self) -> None:
        """The end of a long answer is repeated in several events at once: that is no slow client."""
        now_s = self._clock_s()
        if self._full_since_s is None:
            self._full_since_s = now_s
        is_slow = now_s - self._full_since_s > BURST_S
        if is_slow or self._num_bytes > BURST_FACTOR * self.max_bytes:
            self.overflowed.set()


class SinkTable:
    """The sinks of all live requests."""

    def __init__(self) -> None:
        self._sinks: dict[str, EventSink] = {}

    def __len__(self) -> int:
        return len(self._sinks)

    def get(self, request_id: str) -> EventSink | None:
        """The sink, or None when the request has ended."""
        return self._sinks.get(request_id)

    @contextmanager
    def open(self, request_id: str, max_bytes: int) -> Iterator[EventSink]:
        """A sink for one request, registered as long as the block runs."""
        sink = self._sinks[request_id] = EventSink(max_bytes)
        try:
            yield sink
        finally:
            del self._sinks[request_id]
