"""Finished 128-token blocks on their way into the block store, behind the engine's back."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rorqual_policy.provenance import BlockOrigin, Provenance, StoredReplays, stores_block
from rorqual_runtime.blockstore import BlockMark

from rorqual_decode.generation import GenerationKey
from rorqual_decode.page_hold import PageHold

log = logging.getLogger(__name__)


class BlockSink(Protocol):
    """The part of the block store the writer needs."""

    def put(
        self, fingerprint: str, key: bytes, data: Any, *, ttl_s: float, mark: BlockMark
    ) -> bool: ...


@dataclass(frozen=True, slots=True)
class BlockTraits:
    """What is told of a block beyond its bytes."""

    traffic_class: int
    origin: BlockOrigin = BlockOrigin.CONTINUATION
    provenance: Provenance = Provenance.EXACT
    tenant: str = ""
    position: int = 0
    """Blocks before it in its sequence."""
    ttl_s: int = 0
    """How long it is kept; 0 = as its traffic class says."""
    content_key: bytes = b""
    """Of a prompt's first block: its key in no namespace."""


class StoredBlock(NamedTuple):
    """A block that can be read back from the store."""

    key: bytes
    num_bytes: int
    traits: BlockTraits


@dataclass(frozen=True, slots=True)
class BlockWork:
    """One full page to store. Holds its pages until it is written or dropped."""

    owner: GenerationKey
    key: bytes
    page: int
    hold: PageHold
    traits: BlockTraits


class BlockWriter:
    """Writes offered blocks in one background thread; never makes the one who offers wait.

    At most max_queued blocks wait; more are dropped and counted, which costs a later recompute.
    Blocks behind a replay are left out, and counted, as stored_replays says.
    read_page gives a page's bytes, lifetime_s the time for which a traffic class's blocks are kept
    unless they have one of their own, mark what the store is told of a block; on_stored is called
    in the writer's thread.
    """

    def __init__(
        self,
        store: BlockSink,
        *,
        fingerprint: str,
        read_page: Callable[[int], Any],
        lifetime_s: Callable[[int], float],
        mark: Callable[[BlockTraits], BlockMark],
        on_stored: Callable[[StoredBlock], None],
        max_queued: int,
        stored_replays: StoredReplays = StoredReplays.ALL,
    ) -> None:
        self._store = store
        self._fingerprint = fingerprint
        self._read_page = read_page
        self._lifetime_s = lifetime_s
        self._mark = mark
        self._on_stored = on_stored
        self._max_queued = max_queued
        self._stored_replays = stored_replays
        self._queue: deque[BlockWork] = deque()
        self._changed = threading.Condition()
        self._is_writing = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="block-writer", daemon=True)
        self.num_stored = 0
        self.num_dropped = 0
        self.num_left_out = 0
        self.num_failed = 0

    def start(self) -> None:
        """Begin writing."""
        self._thread.start()

    def offer(
        self, owner: GenerationKey, key: bytes, page: int, hold: PageHold, traits: BlockTraits
    ) -> bool:
        """Queue one full page, keeping its pages held; False when it is not to be stored, or was
        dropped instead."""
        if not stores_block(traits.provenance, traits.origin, self._stored_replays):
            self.num_left_out += 1
            return False
        with self._changed:
            if self._is_closing or len(self._queue) >= self._max_queued:
                self.num_dropped += 1
                return False
            hold.retain()
            self._queue.append(BlockWork(owner, key, page, hold, traits))
            self._changed.notify()
        return True

    def forget(self, owner: GenerationKey) -> None:
        """Drop what is queued for one generation, so that its pages come free."""
        with self._changed:
            dropped = [work for work in self._queue if work.owner == owner]
            if dropped:
                self._queue = deque(work for work in self._queue if work.owner != owner)
        self.num_dropped += len(dropped)
        for work in dropped:
            work.hold.release()

    @property
    def num_queued(self) -> int:
        """Blocks that wait or are being written."""
        with self._changed:
            return len(self._queue) + self._is_writing

    def close(self, timeout_s: float) -> None:
        """Write what is queued for at most timeout_s, then drop the rest and stop."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
            self._changed.wait_for(lambda: not self._queue and not self._is_writing, timeout_s)
            dropped, self._queue = list(self._queue), deque()
            self._changed.notify()
        self.num_dropped += len(dropped)
        for work in dropped:
            work.hold.release()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                self._write(work)
            except Exception:
                self.num_failed += 1
                log.exception("block not stored", extra={"request_id": work.owner.request_id})
            finally:
                work.hold.release()
                with self._changed:
                    self._is_writing = False
                    self._changed.notify_all()

    def _next(self) -> BlockWork | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closing)
            if not self._queue:
                return None
            self._is_writing = True
            return self._queue.popleft()

    def _write(self, work: BlockWork) -> None:
        data = self._read_page(work.page)
        ttl_s = work.traits.ttl_s or self._lifetime_s(work.traits.traffic_class)
        mark = self._mark(work.traits)
        if not self._store.put(self._fingerprint, work.key, data, ttl_s=ttl_s, mark=mark):
            self.num_failed += 1
            return
        self.num_stored += 1
        self._on_stored(StoredBlock(work.key, memoryview(data).nbytes, work.traits))
