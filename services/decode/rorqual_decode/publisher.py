"""Token output on its way to the recipes, and what is kept to send it again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Protocol

from rorqual_runtime.errors import ServingError

from rorqual_decode.generation import GenerationKey, OutputStream

_BATCH_BUDGET_BYTES = 40_000
_DELTA_HEAD_BYTES = 96
_TOKEN_BYTES = 3
_SCORE_BYTES = 16
_TOP_SCORE_BYTES = 8
_RETRY_S = 0.1

log = logging.getLogger(__name__)


class Slice:
    """Part of one stream that goes out in one delta: tokens [start, end) and perhaps the finish."""

    __slots__ = ("end", "start", "stream", "with_finish")

    def __init__(self, stream: OutputStream, start: int, end: int) -> None:
        self.stream, self.start, self.end = stream, start, end
        self.with_finish = stream.finish is not None and end == len(stream.token_ids)

    @property
    def num_bytes(self) -> int:
        """Upper bound of its size on the wire."""
        return _DELTA_HEAD_BYTES + (self.end - self.start) * token_bytes(self.stream)


def token_bytes(stream: OutputStream) -> int:
    """Upper bound of what one token of this stream takes on the wire."""
    num_top = stream.spec.sampling.num_logprobs
    if num_top is None:
        return _TOKEN_BYTES
    return _TOKEN_BYTES + _SCORE_BYTES + _TOP_SCORE_BYTES * num_top


def bounded_slice(stream: OutputStream, start: int) -> Slice:
    """The longest slice from start on that fits one message."""
    most = max(1, (_BATCH_BUDGET_BYTES - _DELTA_HEAD_BYTES) // token_bytes(stream))
    return Slice(stream, start, min(len(stream.token_ids), start + most))


class TokenSink(Protocol):
    """Where batches go; the bus in production."""

    @property
    def is_connected(self) -> bool: ...

    async def send(self, recipe_id: str, slices: list[Slice]) -> None: ...


class TokenPublisher:
    """Publishes every stream's tokens in order, one batch a recipe and round.

    A stream's cursor moves only after its batch was sent, so an absent broker delays tokens and
    loses none; after a reconnect the last slice goes out once more, since it may have died in the
    socket.
    Readers ignore what they have.
    """

    def __init__(self, sink: TokenSink) -> None:
        self._sink = sink
        self._dirty: dict[GenerationKey, OutputStream] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._under_way: dict[GenerationKey, OutputStream] = {}
        """Of the round that is being sent."""
        self._round_ended = asyncio.Event()

    def submit(self, stream: OutputStream) -> None:
        """There is something new to send; returns at once."""
        self._dirty[stream.spec.key] = stream
        self._idle.clear()
        self._wake.set()

    def resubmit(self, streams: Iterable[OutputStream]) -> None:
        """Send the last slice of each stream again: the connection it went out on broke."""
        for stream in streams:
            if stream.num_published > 0 or stream.is_finish_published:
                stream.must_repeat_last = True
                self.submit(stream)

    def drop(self, key: GenerationKey) -> None:
        """Nobody wants the rest of this stream."""
        self._dirty.pop(key, None)

    def _is_wanted(self, key: GenerationKey) -> bool:
        return key in self._dirty or key in self._under_way

    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything submitted is out; False when timeout_s was too short."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def flush_one(self, stream: OutputStream, timeout_s: float) -> bool:
        """The same for what this stream has by now, whatever the others wait for."""
        num_tokens = len(stream.token_ids)
        try:
            async with asyncio.timeout(timeout_s):
                while stream.has_news_before(num_tokens) and self._is_wanted(stream.spec.key):
                    await self._round_ended.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Send for ever; the service tracks this as a task."""
        was_connected = True
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._sink.is_connected or not await self._send_round():
                if was_connected:
                    log.warning("tokens wait for the bus", extra={"num_streams": len(self._dirty)})
                was_connected = False
                await asyncio.sleep(_RETRY_S)
                self._wake.set()
                continue
            was_connected = True
            if not self._dirty:
                self._idle.set()

    async def _send_round(self) -> bool:
        """One batch a recipe; True when all were sent. What did not fit waits for the next one."""
        dirty, self._dirty = self._dirty, {}
        self._under_way = dirty
        all_sent = True
        for recipe_id, slices in _plan_batches(dirty.values()):
            try:
                await self._sink.send(recipe_id, slices)
            except ServingError:
                all_sent = False
            else:
                for piece in slices:
                    _mark_published(piece)
            for piece in slices:
                if piece.stream.must_send:
                    self._dirty.setdefault(piece.stream.spec.key, piece.stream)
        if self._dirty:
            self._wake.set()
        self._under_way = {}
        self._round_ended.set()
        self._round_ended = asyncio.Event()
        return all_sent


def _mark_published(piece: Slice) -> None:
    stream = piece.stream
    stream.must_repeat_last = stream.must_announce = False
    stream.last_published_from, stream.num_published = piece.start, piece.end
    stream.is_finish_published = stream.is_finish_published or piece.with_finish


def _slices_to_send(streams: Iterable[OutputStream]) -> Iterator[Slice]:
    """At most one new slice a stream, after the repeated one where one is due."""
    for stream in streams:
        if stream.must_repeat_last:
            yield Slice(stream, stream.last_published_from, stream.num_published)
        if stream.has_news:
            yield bounded_slice(stream, stream.num_published)


def _plan_batches(streams: Iterable[OutputStream]) -> list[tuple[str, list[Slice]]]:
    """Slices of all streams grouped by recipe, no batch over the message budget."""
    batches: list[tuple[str, list[Slice]]] = []
    open_batches: dict[str, tuple[list[Slice], int]] = {}
    for piece in _slices_to_send(streams):
        recipe_id = piece.stream.spec.recipe_id
        slices, used = open_batches.get(recipe_id, ([], 0))
        if not slices or used + piece.num_bytes > _BATCH_BUDGET_BYTES:
            slices, used = [], 0
            batches.append((recipe_id, slices))
        slices.append(piece)
        open_batches[recipe_id] = (slices, used + piece.num_bytes)
    return batches
