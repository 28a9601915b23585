"""Stored blocks from the store into host memory, ahead of the pages they are meant for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from opentelemetry.trace import Tracer
from rorqual_policy.prefix_fetch import (
    FetchChoice,
    FetchSource,
    ReadRate,
    StoredPrefix,
    bytes_per_s,
    choose_fetch,
    fetch_patience_s,
    observe_read,
)
from rorqual_policy.step_cost import StepCost
from rorqual_runtime.clock import Clock
from rorqual_runtime.decision_log import log_decision
from rorqual_runtime.logs import get_logger

from rorqual_prefill.hit_counts import HitCounts
from rorqual_prefill.host_blocks import BlockVersion, HostBlock, HostBlocks
from rorqual_prefill.read_line import Place, ReadLine

NUM_READERS = 2
"""A read that hangs leaves one that does not."""
_GROUP_BYTES = 16 << 20
_MAX_GROUP_BLOCKS = 64
_READ_AHEAD_GROUPS = 2
_LEAST_PATIENCE_S = 0.5
_MOST_PATIENCE_S = 10.0
OWN_STORE = ""

log = get_logger(__name__)


class BlockSource(Protocol):
    """The part of the block store that prefill reads."""

    def has(self, fingerprint: str, key: bytes) -> bool: ...

    def num_stored(self, fingerprint: str, keys: Sequence[bytes], *, num_exact: int) -> int: ...

    def get_many(self, fingerprint: str, wanted: Sequence[tuple[bytes, Any]]) -> list[bool]: ...


class OtherReaders(Protocol):
    """Instances that would read stored blocks for this one."""

    def sources(self, own_bytes_per_s: float) -> list[FetchSource]:
        """Who could be asked now."""
        ...

    async def read(self, name: str, wanted: Sequence[tuple[bytes, np.ndarray]]) -> list[bool]:
        """Fill the arrays with the blocks of these keys; which of them could be had."""
        ...


@dataclass(frozen=True, slots=True)
class EngineView:
    """What computing would cost instead, as measured."""

    cost: Callable[[], StepCost | None]
    """None = not measured yet."""
    wait_s: Callable[[], float]
    """Seconds of work that the engine has already."""


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks next to each other in a prompt, all of them verified."""

    first: int
    blocks: list[HostBlock]


class Promise(NamedTuple):
    """What kvmeta has said of the blocks that are wanted."""

    num_blocks: int = 0
    """Leading ones that are stored."""
    num_exact: int = 0
    """Of these, before the first one behind a replay."""


@dataclass(slots=True)
class Fetch:
    """The stored prefix of one prompt, group by group, while it is read ahead."""

    keys: Sequence[bytes]
    promise: Promise
    place: Place
    num_stored: int = 0
    num_done: int = 0
    """Blocks that were handed out."""
    missing: list[bytes] = field(default_factory=list)
    """Blocks that kvmeta promised or the store had, and that are not there."""
    corrupt: list[bytes] = field(default_factory=list)
    """Blocks that were there and failed verification."""
    groups: asyncio.Queue[Group | None] = field(
        default_factory=lambda: asyncio.Queue(_READ_AHEAD_GROUPS)
    )
    running: asyncio.Task[None] | None = None
    """What reads ahead."""

    def versions(self, start: int, end: int) -> list[BlockVersion]:
        """These blocks, as host memory knows them."""
        keys = enumerate(self.keys[start:end], start)
        return [BlockVersion(key, number < self.promise.num_exact) for number, key in keys]


class BlockFetcher:
    """Reads the groups of every prompt that waits for blocks, the most urgent first.

    Lives on the event loop; the store is called in threads of its own.
    """

    def __init__(
        self,
        store: BlockSource,
        host: HostBlocks,
        engine: EngineView,
        others: OtherReaders,
        counts: HitCounts,
        *,
        was_damaged: Callable[[bytes], bool],
        fingerprint: str,
        clock: Clock,
        tracer: Tracer,
    ) -> None:
        """was_damaged: whether a block that could not be read was there and failed verification."""
        self._was_damaged = was_damaged
        self._store, self._host, self._engine, self._counts = store, host, engine, counts
        self._fingerprint, self._clock, self._tracer = fingerprint, clock, tracer
        self._others = others
        self._reading: set[asyncio.Task[list[bool]]] = set()
        self._line = ReadLine(host, NUM_READERS)
        self._rate = ReadRate()
        self._queued_bytes = 0
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="block-reader")
        self._lookups = ThreadPoolExecutor(1, thread_name_prefix="block-lookup")
        by_bytes = min(_GROUP_BYTES // host.block_bytes, host.num_blocks // 4)
        self.group_blocks = max(1, min(_MAX_GROUP_BLOCKS, by_bytes))

    @property
    def num_waiting(self) -> int:
        """Prompts whose next group nobody reads yet."""
        return len(self._line)

    def close(self) -> None:
        """Stop after the groups being read."""
        self._lookups.shutdown(wait=True, cancel_futures=True)
        self._readers.shutdown(wait=True, cancel_futures=True)

    @asynccontextmanager
    async def fetching(
        self, keys: Sequence[bytes], promise: Promise, place: Place, num_prompt_tokens: int
    ) -> AsyncIterator[Fetch]:
        """Read ahead while the block runs; what was handed out by then is released by its user."""
        fetch = Fetch(keys, promise, place)
        if not keys:
            fetch.groups.put_nowait(None)
            yield fetch
            return
        reading = self._run(fetch, num_prompt_tokens)
        fetch.running = asyncio.get_running_loop().create_task(reading)
        try:
            yield fetch
        finally:
            await self._stop(fetch)

    async def next(self, fetch: Fetch) -> Group | None:
        """The next group; None at the end, or when it is no longer worth waiting for."""
        patience_s = fetch_patience_s(
            self._engine.cost(),
            fetch.num_done,
            self.group_blocks,
            least_s=_LEAST_PATIENCE_S,
            most_s=_MOST_PATIENCE_S,
        )
        try:
            async with asyncio.timeout(max(patience_s, self._engine.wait_s())):
                group = await fetch.groups.get()
        except TimeoutError:
            self._counts.late_blocks_total += max(1, fetch.num_stored - fetch.num_done)
            log.warning("a fetch was given up", extra={"num_blocks": fetch.num_done})
            await self._stop(fetch)  # its prompt goes on for long, others need the memory
            return None
        if group is not None:
            fetch.num_done += len(group.blocks)
        return group

    def release(self, group: Group | None) -> None:
        """Its blocks have been copied."""
        if group is not None:
            self._host.release(group.blocks)
            self._line.advance()

    def note_pages(self, fetch: Fetch) -> None:
        """The prompt has its pages now."""
        fetch.place.has_pages = True
        self._line.advance()

    async def _run(self, fetch: Fetch, num_prompt_tokens: int) -> None:
        try:
            with self._tracer.start_as_current_span("prefill.fetch_kv") as span:
                await self._look_up(fetch)
                choice = self._choose(fetch, num_prompt_tokens)
                span.set_attribute("rorqual.kv.stored_blocks", fetch.num_stored)
                span.set_attribute("rorqual.kv.wanted_blocks", choice.num_blocks)
                span.set_attribute("rorqual.kv.source", choice.source)
                await self._read_all(fetch, choice)
        except Exception:
            log.exception("a fetch has failed")
        await fetch.groups.put(None)

    async def _stop(self, fetch: Fetch) -> None:
        """Read no further, and release what nobody has taken."""
        if fetch.running is not None:
            fetch.running.cancel()
            await asyncio.gather(fetch.running, return_exceptions=True)
        while not fetch.groups.empty():
            self.release(fetch.groups.get_nowait())

    async def _look_up(self, fetch: Fetch) -> None:
        """What the store has of the prompt, and what of the promised it has not. Where a block is
        not as exact as promised, the hit ends."""

        def look_up() -> tuple[int, list[bytes]]:
            num_blocks, num_exact = fetch.promise
            num_stored = self._store.num_stored(self._fingerprint, fetch.keys, num_exact=num_exact)
            promised = fetch.keys[num_stored:num_blocks]
            return num_stored, [k for k in promised if not self._store.has(self._fingerprint, k)]

        looking = asyncio.get_running_loop().run_in_executor(self._lookups, look_up)
        fetch.num_stored, fetch.missing = await looking

    async def _read_all(self, fetch: Fetch, choice: FetchChoice) -> None:
        for first in range(0, choice.num_blocks, self.group_blocks):
            wanted = fetch.versions(first, min(choice.num_blocks, first + self.group_blocks))
            blocks, failed = await self._read(fetch.place, wanted, choice.source)
            if blocks:
                await self._hand_out(fetch, Group(first, blocks))
            if failed:
                gone = await self._gone(failed)
                fetch.corrupt = [key for key in gone if self._was_damaged(key)]
                fetch.missing += [key for key in gone if key not in fetch.corrupt]
                return

    async def _gone(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those that the store has no more: damaged and removed, or evicted since it was asked."""

        def look_up() -> list[bytes]:
            return [key for key in keys if not self._store.has(self._fingerprint, key)]

        return await asyncio.get_running_loop().run_in_executor(self._lookups, look_up)

    def _choose(self, fetch: Fetch, num_prompt_tokens: int) -> FetchChoice:
        """How many of the stored blocks to read, and from whom."""
        stored = fetch.versions(0, fetch.num_stored)
        num_unread = sum(not self._host.holds(version) for version in stored)
        prefix = StoredPrefix(
            fetch.num_stored, num_unread * self._host.block_bytes, num_prompt_tokens
        )
        own_rate = bytes_per_s(self._rate, self._clock.monotonic_s())
        own = FetchSource(OWN_STORE, own_rate, self._queued_bytes)
        sources = [own, *self._others.sources(own_rate)]
        cost, wait_s = self._engine.cost(), self._engine.wait_s()
        choice = choose_fetch(prefix, sources, cost, wait_s)
        log_decision("fetch", (prefix, sources, cost, wait_s), choice)
        self._counts.left_out_blocks_total += fetch.num_stored - choice.num_blocks
        return choice

    async def _hand_out(self, fetch: Fetch, group: Group) -> None:
        try:
            await fetch.groups.put(group)
        except asyncio.CancelledError:
            self.release(group)
            raise

    async def _read(
        self, place: Place, wanted: Sequence[BlockVersion], source: str
    ) -> tuple[list[HostBlock], list[bytes]]:
        """The verified blocks before the first that could not be read, for the caller to release;
        and the keys of those that could not.

        A cancellation leaves the read to itself: what it brings is found by the next who asks.
        """
        turn = await self._line.turn(place, wanted)
        self._counts.host_blocks_total += len(turn.blocks) - len(turn.to_fill)
        self._start_read(turn.to_fill, source)
        try:
            is_read = [await asyncio.shield(block.filled) for block in turn.blocks]
        except asyncio.CancelledError:
            self._host.release(turn.blocks)
            raise
        num_read = next((number for number, ok in enumerate(is_read) if not ok), len(wanted))
        self._host.release(turn.blocks[num_read:])
        failed = [version.key for version, ok in zip(wanted, is_read, strict=True) if not ok]
        return turn.blocks[:num_read], failed

    def _start_read(self, blocks: list[HostBlock], source: str) -> None:
        if not blocks:
            self._line.end()
            return
        for block in blocks:
            block.num_users += 1  # the reader, who may outlive the fetch
        reading = asyncio.get_running_loop().create_task(self._fill(blocks, source))
        self._reading.add(reading)
        reading.add_done_callback(partial(self._on_read, blocks))

    async def _fill(self, blocks: list[HostBlock], source: str) -> list[bool]:
        """Which of the blocks are in their memory now; what the source has not, the own store may
        have."""
        wanted = [(block.version.key, block.array) for block in blocks if block.version]
        if source == OWN_STORE:
            return await self._read_own(wanted)
        is_read = await self._others.read(source, wanted)
        self._counts.relayed_blocks_total += sum(is_read)
        rest = [pair for pair, ok in zip(wanted, is_read, strict=True) if not ok]
        of_rest = iter(await self._read_own(rest) if rest else [])
        return [ok or next(of_rest) for ok in is_read]

    async def _read_own(self, wanted: Sequence[tuple[bytes, np.ndarray]]) -> list[bool]:
        num_bytes = len(wanted) * self._host.block_bytes
        self._queued_bytes += num_bytes
        reading = asyncio.get_running_loop().run_in_executor(self._readers, self._get, wanted)
        try:
            is_read, took_s = await reading
        finally:
            self._queued_bytes -= num_bytes
        self._rate = observe_read(self._rate, num_bytes, took_s, self._clock.monotonic_s())
        self._counts.fetched_blocks_total += sum(is_read)
        self._counts.fetched_bytes_total += sum(is_read) * self._host.block_bytes
        self._counts.fetch_s_total += took_s
        return is_read

    def _get(self, wanted: Sequence[tuple[bytes, np.ndarray]]) -> tuple[list[bool], float]:
        began_s = self._clock.monotonic_s()
        is_read = self._store.get_many(self._fingerprint, wanted)
        return is_read, self._clock.monotonic_s() - began_s

    def _on_read(self, blocks: list[HostBlock], reading: asyncio.Task[list[bool]]) -> None:
        self._reading.discard(reading)
        is_read = [False] * len(blocks)
        if not reading.cancelled() and (error := reading.exception()) is not None:
            log.error("blocks could not be read", exc_info=error)
        elif not reading.cancelled():
            is_read = reading.result()
        for block, ok in zip(blocks, is_read, strict=True):
            self._host.note_filled(block, ok)
        self._host.release(blocks)
        self._line.end()
