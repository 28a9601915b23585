"""A block store in one directory of a local or shared file system."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rorqual_runtime.blockstore.backend import (
    BlockListing,
    BlockMark,
    OnForgotten,
    Provenance,
    StoreStats,
)
from rorqual_runtime.blockstore.entries import Entry
from rorqual_runtime.blockstore.ledger import Ledger
from rorqual_runtime.blockstore.reads import Wanted, read_blocks
from rorqual_runtime.blockstore.record import BlockName
from rorqual_runtime.blockstore.segment_set import Found, change_use
from rorqual_runtime.blockstore.size_classes import SizeClass, SizeClasses
from rorqual_runtime.blockstore.slot_io import IoMode
from rorqual_runtime.blockstore.survey import EvictionPolicy
from rorqual_runtime.blockstore.writes import Offered, write_blocks
from rorqual_runtime.clock import Clock, WallClock

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PLAIN = BlockMark()


class BlockStore:
    """`BlockStoreBackend` over segment files of fixed-size slots.

    Safe for threads and for processes on one directory at once, without a server. A record is
    written first, then the entry that points to it; every read verifies that it got the record it
    meant, whole. There is no fsync: after a power failure a block may be damaged, which its
    checksum tells. Expiry follows the wall clock: set ahead, blocks expire early; set back, they
    live longer by as much, but a block more than a day from the future is removed.
    """

    def __init__(
        self,
        directory: Path | str,
        capacity_bytes: int,
        *,
        eviction: EvictionPolicy,
        clock: Clock | None = None,
        on_forgotten: OnForgotten | None = None,
        io_mode: IoMode = "direct",
    ) -> None:
        """Open or create. Raises: OSError when the directory cannot be used at all."""
        if capacity_bytes <= 0:
            raise ValueError(f"need capacity_bytes > 0; got {capacity_bytes}")
        self._clock = clock or WallClock()
        self._ledger = Ledger(on_forgotten, self._name_of)
        self._classes = SizeClasses(
            Path(directory),
            capacity_bytes,
            eviction,
            self._clock,
            io_mode,
            on_gone=self._ledger.note_gone,
            on_damaged=partial(self._ledger.count, "corrupt"),
        )

    def get(self, fingerprint: str, key: bytes, into: Buffer, *, is_use: bool = True) -> bool:
        """Fill `into` with the block. False: a miss, also when what was found is damaged, expired
        or not of this size; `into` holds anything."""
        return self.get_many(fingerprint, [(key, into)], is_use=is_use)[0]

    def get_many(
        self, fingerprint: str, wanted: Sequence[tuple[bytes, Buffer]], *, is_use: bool = True
    ) -> list[bool]:
        """`get` for each (key, into), side by side. Returns their results in order."""
        blocks = [
            Wanted(BlockName.of(fingerprint, key), memoryview(into).cast("B"))
            for key, into in wanted
        ]
        hits = read_blocks(self._classes, blocks, self._clock.now_unix_s(), notes_use=is_use)
        self._ledger.count("hits", sum(hits))
        self._ledger.count("misses", len(hits) - sum(hits))
        self._ledger.tell()
        return hits

    def put(
        self,
        fingerprint: str,
        key: bytes,
        data: Buffer,
        *,
        ttl_s: float | None = None,
        mark: BlockMark = _PLAIN,
    ) -> bool:
        """Keep the block, for at most ttl_s if given. False: it was not kept; never raises for
        storage."""
        return self.put_many(fingerprint, [(key, data)], ttl_s=ttl_s, mark=mark)[0]

    def put_many(
        self,
        fingerprint: str,
        blocks: Sequence[tuple[bytes, Buffer]],
        *,
        ttl_s: float | None = None,
        mark: BlockMark = _PLAIN,
    ) -> list[bool]:
        """`put` for each (key, data), side by side; depth counts on from the mark's."""
        offered = [
            Offered(
                BlockName.of(fingerprint, key),
                memoryview(data).cast("B"),
                ttl_s,
                mark._replace(depth=mark.depth + index),
            )
            for index, (key, data) in enumerate(blocks)
        ]
        with contextlib.suppress(OSError):  # if it can't be noted, nor can the blocks
            self._classes.directory.name_fingerprint(fingerprint)
        outcomes = write_blocks(self._classes, offered, self._clock.now_unix_s())
        for outcome in set(outcomes):
            self._ledger.count(outcome, outcomes.count(outcome))
        self._ledger.tell()
        return [outcome != "put_failures" for outcome in outcomes]

    def has(self, fingerprint: str, key: bytes) -> bool:
        """Whether the index names such a block; only `get` verifies the record."""
        return self._mark_of(BlockName.of(fingerprint, key)) is not None

    def num_stored(self, fingerprint: str, keys: Sequence[bytes], *, num_exact: int = 0) -> int:
        """How many blocks the index names before the first that it does not; of the first num_exact
        only exact ones count."""
        for number, key in enumerate(keys):
            mark = self._mark_of(BlockName.of(fingerprint, key))
            if mark is None or (number < num_exact and mark.provenance is not Provenance.EXACT):
                return number
        return len(keys)

    def hold(self, fingerprint: str, keys: Sequence[bytes], until_unix_s: float) -> None:
        """Not to be evicted until then, at most for MAX_HOLD_S, by any process."""
        now_s, until_s = int(self._clock.now_unix_s()), math.ceil(until_unix_s)
        with contextlib.suppress(OSError):
            for key in keys:
                found = self._find(BlockName.of(fingerprint, key))
                if found is not None:
                    change_use(found[1], lambda entry: entry.held(now_s, until_s))

    def delete(self, fingerprint: str, key: bytes) -> bool:
        """Forget the block. False: it was not there."""
        name = BlockName.of(fingerprint, key)
        is_gone = False
        with contextlib.suppress(OSError):
            while (found := self._find(name)) is not None:
                size_class, place = found
                is_gone = size_class.allocator.withdraw(place, None) or is_gone
        return is_gone

    def listing(self) -> Iterator[BlockListing]:
        """Every block of the store, in no order; those that come or go meanwhile may be missed."""
        for size_class in self._classes.all():
            for segment in size_class.segments.segments():
                for found in size_class.segments.blocks_of(segment):
                    yield self._listed(found.entry)

    def maintain(self, *, everything: bool = False) -> None:
        """Follow what other processes did to the directory, expire the blocks of one segment of
        each size (or of all), and let go of what is not in use; call it every few seconds."""
        with contextlib.suppress(OSError):
            self._classes.follow()
            for size_class in self._classes.all():
                size_class.allocator.sweep(everything=everything)
                size_class.allocator.release_idle()
            if self._ledger.counts().get("puts"):  # who only reads may have been told less
                self._classes.shrink()
        self._ledger.tell()

    @property
    def identity(self) -> str:
        return self._classes.directory.store_id.hex()

    def is_reachable(self) -> bool:
        return not self._classes.directory.is_gone()

    def stats(self) -> StoreStats:
        counts = self._ledger.counts()
        num_blocks, num_bytes = self._classes.used()
        counted = {f.name: counts.get(f.name, 0) for f in dataclasses.fields(StoreStats)}
        sizes = {
            "num_bytes": num_bytes,
            "num_blocks": num_blocks,
            "allocated_bytes": self._classes.allocated_bytes(),
            "capacity_bytes": self._classes.capacity_bytes,
        }
        return StoreStats(**{**counted, **sizes})

    def close(self) -> None:
        self._classes.close()

    def _mark_of(self, name: BlockName) -> BlockMark | None:
        """Of the block as the index has it; None where there is none."""
        try:
            found = self._find(name)
        except OSError:
            return None
        if found is None or found[1].entry.is_due(self._clock.now_unix_s()):
            return None
        return found[1].entry.mark

    def _find(self, name: BlockName) -> tuple[SizeClass, Found] | None:
        for size_class in self._classes.all():
            found = size_class.segments.locate(name)
            if found is not None:
                return size_class, found
        return None

    def _listed(self, entry: Entry) -> BlockListing:
        return BlockListing(
            self._name_of(entry.name.fingerprint),
            entry.name.key,
            entry.num_bytes,
            float(entry.created_s),
            float(entry.expires_s) or None,
            float(entry.used_s),
            entry.num_uses,
            entry.mark,
        )

    def _name_of(self, fingerprint: bytes) -> str:
        return self._classes.directory.fingerprint_of(fingerprint)
