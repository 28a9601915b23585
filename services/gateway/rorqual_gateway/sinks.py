"""Where events of live requests arrive: in order, bounded, and gone with the request."""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rorqual_runtime.clock import Clock

from rorqual_gateway.errors import HttpError

MAX_EARLY = 256


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one request. reasoning is part of completion."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0
    cache_miss_reason: str = ""
    """Why no more of the prompt was cached; empty where nothing was missed."""


@dataclass(slots=True)
class Event:
    """What recipe said about one request. data: SSE frames, or parts of the one JSON body.

    usage: tokens so far; final in the last event. num_tokens, finish_reasons, decode_ids: by
    choice. take_over: which instance of recipe this is from.
    """

    seq: int
    data: Sequence[bytes]
    done: bool = False
    error: HttpError | None = None
    usage: TokenUsage | None = None
    finish_reasons: Sequence[str] = ()
    num_tokens: Sequence[int] = ()
    decode_ids: Sequence[str] = ()
    take_over: int = 0


@dataclass(slots=True)
class Position:
    """How far an answer has come. is_exact: not inside an event that came in parts."""

    num_tokens: Sequence[int] = ()
    finish_reasons: Sequence[str] = ()
    decode_ids: Sequence[str] = ()
    is_exact: bool = True

    def pass_event(self, event: Event) -> None:
        """The event is, or will be, with the client."""
        self.is_exact = bool(event.num_tokens)
        self.num_tokens = event.num_tokens
        self.finish_reasons = event.finish_reasons or self.finish_reasons
        self.decode_ids = event.decode_ids or self.decode_ids


@dataclass(frozen=True, slots=True)
class Patience:
    """How far a client may stay behind: more than `max_bytes` for longer than `max_s` is too slow.

    A burst is nobody's fault, whatever its size up to `most_bytes`.
    """

    max_bytes: int
    max_s: float
    most_bytes: int


class EventSink:
    """Events of one request in the order of their seq, each once.

    `overflowed` is set when what waits to be taken is beyond patience. next_seq: the event awaited.
    take_over: the instance whose events are taken, those of others are dropped. `superseded` is set
    when somebody else goes on with the request.
    """

    def __init__(self, patience: Patience, clock: Clock) -> None:
        self._patience = patience
        self._clock = clock
        self._oldest_s = 0.0
        self._ready: deque[Event] = deque()
        self._early: dict[int, Event] = {}
        self._num_bytes = 0
        self.next_seq = 0
        self.take_over = 0
        self._last_claimed = 0
        self.position = Position()
        self._wake = asyncio.Event()
        self.overflowed = asyncio.Event()
        self.superseded = asyncio.Event()

    @property
    def has_gap(self) -> bool:
        """True while an event is missing and later ones are here."""
        return bool(self._early)

    def push(self, event: Event) -> None:
        """Take an event; duplicates are dropped, early ones wait for their turn."""
        if event.take_over != self.take_over:
            return
        if event.seq != self.next_seq:
            self._push_out_of_turn(event)
            return
        self._append(event)
        while self._early and (follower := self._early.pop(self.next_seq, None)) is not None:
            self._append(follower)
        self._wake.set()

    def go_on_from(self, next_seq: int, position: Position, take_over: int) -> None:
        """Of an answer whose client has got a part of it already."""
        self.next_seq, self.position = next_seq, position
        self.take_over = self._last_claimed = take_over

    def claim_take_over(self) -> int:
        """A number for the events of another instance. Each attempt needs its own: two instances
        that both go on would number different events alike."""
        self._last_claimed += 1
        return self._last_claimed

    def begin_take_over(self) -> None:
        """From now on events of the last claimed number are taken, from `next_seq` on."""
        self.take_over = self._last_claimed
        self._early.clear()

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
        return events

    def _push_out_of_turn(self, event: Event) -> None:
        """Keep an early event. Too many are no loss: they come again with the missing one."""
        if event.seq > self.next_seq and len(self._early) < MAX_EARLY:
            self._early[event.seq] = event

    def _append(self, event: Event) -> None:
        self.next_seq += 1
        self.position.pass_event(event)
        if not self._ready:
            self._oldest_s = self._clock.monotonic_s()
        self._ready.append(event)
        for item in event.data:
            self._num_bytes += len(item)
        if self._num_bytes > self._patience.max_bytes and not event.done and self._is_too_slow():
            self.overflowed.set()

    def _is_too_slow(self) -> bool:
        waited_s = self._clock.monotonic_s() - self._oldest_s
        return waited_s > self._patience.max_s or self._num_bytes > self._patience.most_bytes


class SinkTable:
    """The sinks of all live requests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sinks: dict[str, EventSink] = {}

    def __len__(self) -> int:
        return len(self._sinks)

    def get(self, request_id: str) -> EventSink | None:
        """The sink, or None when the request has ended."""
        return self._sinks.get(request_id)

    @contextmanager
    def open(self, request_id: str, patience: Patience) -> Iterator[EventSink]:
        """A sink for one request, registered as long as the block runs, or until another one is
        opened for it: its client is back on another connection."""
        if (older := self._sinks.get(request_id)) is not None:
            older.superseded.set()
        sink = self._sinks[request_id] = EventSink(patience, self._clock)
        try:
            yield sink
        finally:
            if self._sinks.get(request_id) is sink:
                del self._sinks[request_id]
