"""A block store in one directory of a local or shared file system."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rorqual_runtime.blockstore.allocator import OwnSlot
from rorqual_runtime.blockstore.backend import (
    BlockListing,
    BlockMark,
    OnForgotten,
    Provenance,
    StoreStats,
)
from rorqual_runtime.blockstore.entries import Entry
from rorqual_runtime.blockstore.io_threads import IoThreads
from rorqual_runtime.blockstore.ledger import Ledger
from rorqual_runtime.blockstore.record import (
    BadRecord,
    BlockName,
    RecordHeader,
    digest_of,
    verify,
)
from rorqual_runtime.blockstore.segment_set import Found
from rorqual_runtime.blockstore.size_classes import SizeClass, SizeClasses
from rorqual_runtime.blockstore.slot_io import IoMode
from rorqual_runtime.blockstore.survey import EvictionPolicy
from rorqual_runtime.clock import Clock, WallClock
from rorqual_runtime.logs import get_logger

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TOUCH_INTERVAL_S = 60.0
_PLAIN = BlockMark()

log = get_logger(__name__)


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
        num_threads: int = 16,
    ) -> None:
        """Open or create. Raises: OSError when the directory cannot be used at all."""
        if capacity_bytes <= 0:
            raise ValueError(f"need capacity_bytes > 0; got {capacity_bytes}")
        self._clock = clock or WallClock()
        self._threads = IoThreads(num_threads)
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

    def get(self, fingerprint: str, key: bytes, into: Buffer) -> bool:
        """Fill `into` with the block. False: a miss, also when what was found is damaged, expired
        or not of this size; `into` holds anything."""
        name = BlockName.of(fingerprint, key)
        target = memoryview(into).cast("B")
        try:
            is_hit = self._read(name, target)
        except OSError:
            is_hit = False
        self._ledger.count("hits" if is_hit else "misses")
        self._ledger.tell()
        return is_hit

    def get_many(self, fingerprint: str, wanted: Sequence[tuple[bytes, Buffer]]) -> list[bool]:
        """`get` for each (key, into), side by side. Returns their results in order."""
        return self._threads.each(lambda i: self.get(fingerprint, *wanted[i]), len(wanted))

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
        name = BlockName.of(fingerprint, key)
        payload = memoryview(data).cast("B")
        try:
            self._classes.directory.name_fingerprint(name.fingerprint, fingerprint)
            outcome = self._put(name, payload, ttl_s, mark)
        except OSError as error:
            log.debug("block not stored", extra={"error": str(error)})
            outcome = "put_failures"
        self._ledger.count(outcome)
        self._ledger.tell()
        return outcome != "put_failures"

    def put_many(
        self,
        fingerprint: str,
        blocks: Sequence[tuple[bytes, Buffer]],
        *,
        ttl_s: float | None = None,
        mark: BlockMark = _PLAIN,
    ) -> list[bool]:
        """`put` for each (key, data), side by side; depth counts on from the mark's."""

        def put_one(index: int) -> bool:
            own_mark = mark._replace(depth=mark.depth + index)
            return self.put(fingerprint, *blocks[index], ttl_s=ttl_s, mark=own_mark)

        return self._threads.each(put_one, len(blocks))

    def has(self, fingerprint: str, key: bytes) -> bool:
        """Whether the index names such a block; only `get` verifies the record."""
        name = BlockName.of(fingerprint, key)
        try:
            found = self._find(name)
        except OSError:
            return False
        return found is not None and not found[1].entry.is_due(self._clock.now_unix_s())

    def num_stored(self, fingerprint: str, keys: Sequence[bytes]) -> int:
        """How many blocks the index names before the first that it does not."""
        absent = (number for number, key in enumerate(keys) if not self.has(fingerprint, key))
        return next(absent, len(keys))

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
        self._threads.close()
        self._classes.close()

    def _read(self, name: BlockName, target: memoryview) -> bool:
        size_class = self._classes.find(target.nbytes)
        if size_class is None:
            return False
        now_unix_s = self._clock.now_unix_s()
        for _ in range(2):  # once more for a slot that was used anew meanwhile
            found = size_class.segments.locate(name)
            if found is None or found.entry.num_bytes != target.nbytes:
                return False
            if found.entry.is_due(now_unix_s):
                size_class.allocator.withdraw(found, "expired")
                return False
            if _is_read(name, found, target):
                _note_use(found, int(now_unix_s))
                return True
            if size_class.allocator.withdraw(found, "corrupt"):
                return False
        return False

    def _put(
        self, name: BlockName, payload: memoryview, ttl_s: float | None, mark: BlockMark
    ) -> str:
        """Returns which count it adds to. Raises: OSError."""
        size_class = self._classes.make(payload.nbytes)
        earlier = size_class.segments.locate(name)
        if earlier is not None and self._keeps(size_class, earlier, payload.nbytes, ttl_s, mark):
            return "duplicates"
        try:
            own = size_class.allocator.take()
        except FileNotFoundError:  # somebody has deleted the directory
            self._classes.begin_again()
            return "put_failures"
        if own is None:
            return "put_failures"
        try:
            self._write(size_class, own, name, payload, ttl_s, mark)
        except BaseException:
            size_class.allocator.give_back(own)
            raise
        if earlier is not None:
            size_class.allocator.withdraw(earlier, None)
        return "puts"

    def _keeps(
        self,
        size_class: SizeClass,
        found: Found,
        num_bytes: int,
        ttl_s: float | None,
        mark: BlockMark,
    ) -> bool:
        """Whether the block is there already and as good; its life is made longer if need be."""
        entry, now_unix_s = found.entry, self._clock.now_unix_s()
        if entry.num_bytes != num_bytes or entry.is_due(now_unix_s):
            return False
        if mark.provenance is Provenance.EXACT and entry.mark.provenance is not Provenance.EXACT:
            return False
        wanted_s = math.inf if ttl_s is None else now_unix_s + ttl_s / 2
        if entry.expires_s and entry.expires_s < wanted_s:
            longer = entry._replace(expires_s=_expiry_s(now_unix_s, ttl_s))
            size_class.allocator.update(found, longer)
        return True

    def _write(
        self,
        size_class: SizeClass,
        own: OwnSlot,
        name: BlockName,
        payload: memoryview,
        ttl_s: float | None,
        mark: BlockMark,
    ) -> None:
        now_unix_s = self._clock.now_unix_s()
        expires_s = _expiry_s(now_unix_s, ttl_s)
        header = RecordHeader(
            name,
            own.segment.address(own.slot, own.generation),
            payload.nbytes,
            now_unix_s,
            float(expires_s) or None,
            mark,
            digest_of(payload),
        )
        own.segment.write_record(own.slot, header.pack(), payload)
        now_s = int(now_unix_s)
        entry = Entry(own.generation, name, payload.nbytes, expires_s, now_s, now_s, 0, mark)
        size_class.allocator.publish(own, entry)

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


def _is_read(name: BlockName, found: Found, target: memoryview) -> bool:
    """Whether target now holds the block, proven. Raises: OSError, except for unreadable media."""
    segment, slot, entry = found
    try:
        header = segment.read_record(slot, target)
        verify(header, target, name, segment.address(slot, entry.generation))
    except BadRecord:
        return False
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False
    return True


def _note_use(found: Found, now_s: int) -> None:
    segment, slot, entry = found
    if now_s - entry.used_s > _TOUCH_INTERVAL_S or entry.used_s > now_s:
        segment.note_use(slot, entry._replace(used_s=now_s, num_uses=entry.num_uses + 1))


def _expiry_s(now_unix_s: float, ttl_s: float | None) -> int:
    """Whole seconds, rounded up; 0 for never."""
    return 0 if ttl_s is None else min(math.ceil(now_unix_s + ttl_s), 0xFFFFFFFF)
