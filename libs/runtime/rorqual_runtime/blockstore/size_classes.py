"""The slot sizes of a store, and the capacity that they share."""

from __future__ import annotations

import contextlib
import errno
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rorqual_runtime.blockstore.allocator import SlotAllocator
from rorqual_runtime.blockstore.backend import ForgetReason
from rorqual_runtime.blockstore.entries import Entry
from rorqual_runtime.blockstore.layout import StoreDirectory
from rorqual_runtime.blockstore.record import PAGE_BYTES
from rorqual_runtime.blockstore.segment import Segment
from rorqual_runtime.blockstore.segment_set import SegmentSet
from rorqual_runtime.blockstore.slot_io import IoMode, pages_of
from rorqual_runtime.blockstore.survey import EvictionPolicy
from rorqual_runtime.blockstore.usrbio import choose_io
from rorqual_runtime.clock import Clock

_SEGMENTS_PER_STORE = 32
"""At least: a larger segment would be too large a part to drop."""
_MIN_SEGMENT_BYTES = 16 << 20


class SizeClass(NamedTuple):
    """All blocks of one slot size."""

    segments: SegmentSet
    allocator: SlotAllocator


class SizeClasses:
    """Opens size classes as they are needed and shares the capacity out: a `RoomMaker`.

    Safe for threads. Raises: OSError when the directory cannot be used at all.
    """

    def __init__(
        self,
        root: Path,
        capacity_bytes: int,
        eviction: EvictionPolicy,
        clock: Clock,
        io_mode: IoMode,
        *,
        on_gone: Callable[[Entry, ForgetReason], None],
        on_damaged: Callable[[], None],
    ) -> None:
        self.root = root
        self.capacity_bytes = capacity_bytes
        self._eviction = eviction
        self._clock = clock
        self._io_mode: IoMode = io_mode
        self._on_gone = on_gone
        self._on_damaged = on_damaged
        self._open: dict[int, SizeClass] = {}
        self._lock = threading.RLock()
        self._listed_ns = 0
        self.directory = StoreDirectory(root)
        with self.directory.locked() as is_locked:
            if is_locked:  # else somebody may be about to finish what looks like one
                self.directory.remove_orphans()

    def find(self, num_payload_bytes: int) -> SizeClass | None:
        """The class of blocks of this size, if there is one. Raises: OSError."""
        slot_bytes = _slot_bytes(num_payload_bytes)
        known = self._open.get(slot_bytes)
        if known is not None or not self.directory.class_path(slot_bytes).exists():
            return known
        return self._opened(slot_bytes)

    def make(self, num_payload_bytes: int) -> SizeClass:
        """The class of blocks of this size. Raises: OSError."""
        slot_bytes = _slot_bytes(num_payload_bytes)
        return self._open.get(slot_bytes) or self._opened(slot_bytes)

    def all(self) -> list[SizeClass]:
        """Also those that other processes began. An unusable one is left out."""
        with contextlib.suppress(OSError):
            changed_ns = self.root.stat().st_mtime_ns
            if changed_ns != self._listed_ns:
                for slot_bytes in self.directory.slot_sizes():
                    if slot_bytes not in self._open:
                        with contextlib.suppress(OSError):
                            self._opened(slot_bytes)
                self._listed_ns = changed_ns
        return list(self._open.values())

    def follow(self) -> None:
        """Notice what other processes did to the directory. Raises: OSError."""
        if self.directory.is_gone():
            self.begin_again()
        for size_class in self.all():
            size_class.allocator.refresh()

    def begin_again(self) -> None:
        """The directory is another one: forget what was known of the old. Raises: OSError."""
        with self._lock:
            self._open = {}
            self._listed_ns = 0
            self.directory = StoreDirectory(self.root)

    def shrink(self) -> None:
        """Drop segments while there are more than the capacity allows: it was larger before."""
        excess_bytes = self.allocated_bytes() - self.capacity_bytes
        for size_class in self.all() if excess_bytes > 0 else []:
            for sample in sorted(size_class.allocator.sample(), key=lambda s: -s.free_share):
                if excess_bytes <= 0:
                    return
                if size_class.allocator.drop_segment(sample.segment):
                    excess_bytes -= sample.segment.shape.data_bytes

    def allocated_bytes(self) -> int:
        """Size of all data files; 0 when it cannot be found out."""
        try:
            return self.directory.allocated_bytes()
        except OSError:
            return 0

    def used(self) -> tuple[int, int]:
        """(blocks, bytes of their slots) of the whole store."""
        num_blocks = num_bytes = 0
        for size_class in self.all():
            with contextlib.suppress(OSError):
                segments = size_class.segments.segments()
                count = sum(segment.num_valid() for segment in segments)
                num_blocks += count
                num_bytes += count * size_class.segments.slot_bytes
        return num_blocks, num_bytes

    def close(self) -> None:
        for size_class in self._open.values():
            size_class.allocator.close()
            size_class.segments.io.close()
        self._open = {}

    # What allocators ask for.

    def now_unix_s(self) -> float:
        return self._clock.now_unix_s()

    def new_segment(self, segments: SegmentSet) -> Segment | None:
        """A segment that grows the store by an eighth, within bounds and what is left."""
        slot_bytes = segments.slot_bytes
        with self.directory.locked():
            used_bytes = self.directory.allocated_bytes()
            wanted_bytes = max(_MIN_SEGMENT_BYTES, used_bytes // 8)
            wanted_bytes = min(wanted_bytes, self.capacity_bytes // _SEGMENTS_PER_STORE)
            num_left = (self.capacity_bytes - used_bytes) // slot_bytes
            num_slots = min(max(1, wanted_bytes // slot_bytes), num_left)
            if num_slots < 1:
                return None
            try:
                return segments.create(num_slots, secrets.randbelow(0xFFFFFFFE) + 1)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    raise
                return None  # a full disk: live with the segments there are

    def give_way(self, segments: SegmentSet, victims_value: float | None) -> bool:
        """Drop a segment of another slot size if it is worth less than the victims."""
        samples = [
            (other, sample)
            for other in self.all()
            if other.segments is not segments
            for sample in other.allocator.sample()
        ]
        now_unix_s = self.now_unix_s()
        values = [
            sum(self._eviction.block_value(b, now_unix_s) for b in sample.blocks) / sample.num_slots
            for _, sample in samples
        ]
        while True:
            choice = self._eviction.choose_segment_to_drop(victims_value, values)
            if choice is None:
                return False
            other, sample = samples.pop(choice)
            if other.allocator.drop_segment(sample.segment):
                return True
            values.pop(choice)  # somebody works with it

    def _opened(self, slot_bytes: int) -> SizeClass:
        with self._lock, self.directory.locked():
            known = self._open.get(slot_bytes)
            if known is not None:
                return known
            segments = SegmentSet(
                self.directory.class_path(slot_bytes),
                slot_bytes,
                self.directory.store_id,
                choose_io(self.root, self._io_mode, slot_bytes),
                max_blocks=self.capacity_bytes // slot_bytes,
                on_damaged=self._on_damaged,
            )
            allocator = SlotAllocator(segments, self._eviction, self, self._on_gone)
            fresh = SizeClass(segments, allocator)
            self._open = {**self._open, slot_bytes: fresh}
            return fresh


def _slot_bytes(num_payload_bytes: int) -> int:
    return PAGE_BYTES + pages_of(num_payload_bytes)
