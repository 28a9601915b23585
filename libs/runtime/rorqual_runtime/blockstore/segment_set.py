"""All blocks of one slot size: the segments that hold them and the map that finds them."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rorqual_runtime.blockstore.descriptors import open_descriptor
from rorqual_runtime.blockstore.entries import Entry, SlotState
from rorqual_runtime.blockstore.key_map import (
    BadMap,
    KeyMap,
    Place,
    buckets_for,
    create_map,
    tag_of,
)
from rorqual_runtime.blockstore.record import BlockName
from rorqual_runtime.blockstore.segment import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    SCAN_SLOTS,
    BadSegment,
    Segment,
    SegmentShape,
    create_segment,
    index_path,
)
from rorqual_runtime.blockstore.slot_io import SlotIo
from rorqual_runtime.logs import get_logger

_MAP_NAME = "map"
_INDEX_NAME = re.compile(rf"[0-9a-f]{{8}}{re.escape(INDEX_SUFFIX)}")

log = get_logger(__name__)


class Found(NamedTuple):
    """A block's slot and what its entry said when it was looked at."""

    segment: Segment
    slot: int
    entry: Entry


def change_use(found: Found, change: Callable[[Entry], Entry | None]) -> None:
    """Write what change makes of the block's use as it is now, if it is still this block.

    Raises: OSError."""
    entry = found.segment.entry(found.slot)
    if entry is not None and entry.generation == found.entry.generation:
        changed = change(entry)
        if changed is not None:
            found.segment.note_use(found.slot, changed)


class SegmentSet:
    """Opens segments as they are needed. Every method may raise OSError."""

    def __init__(
        self,
        directory: Path,
        slot_bytes: int,
        store_id: bytes,
        io: SlotIo,
        *,
        max_blocks: int,
        on_damaged: Callable[[], None],
    ) -> None:
        """max_blocks: how many the store can hold; call it while holding the store's lock.

        on_damaged is called for each index file that was removed because it is none.
        """
        self.directory = directory
        self.slot_bytes = slot_bytes
        self._store_id = store_id
        self.io = io
        self._max_blocks = max_blocks
        self._on_damaged = on_damaged
        self._segments: dict[int, Segment] = {}
        self._lock = threading.Lock()
        directory.mkdir(exist_ok=True)
        self._map = self._open_map()

    def locate(self, name: BlockName) -> Found | None:
        """The block's slot, if there is one; only its record proves that the block is there."""
        for place in self._map.places(name):
            segment = self.segment(place.segment)
            entry = segment.entry(place.slot) if segment else None
            if segment and entry and entry.name == name:
                return Found(segment, place.slot, entry)
            if segment and entry is None and segment.scrap(place.slot):
                self._on_damaged()
        return None

    def publish(self, segment: Segment, slot: int, entry: Entry) -> None:
        """Make a written record visible: its entry, then the way to it."""
        segment.publish(slot, entry)
        self._map.add(entry.name, Place(segment.number, slot), self._is_stale)

    def withdraw(self, found: Found) -> bool:
        """Make a record invisible and its slot free. False: it was another one by now."""
        if not found.segment.holds(found.slot, found.entry.generation):
            return False
        self.remove(found)
        return True

    def remove(self, found: Found) -> None:
        """`withdraw` for the segment's owner, who has just looked: nobody else uses slots anew."""
        segment, slot, entry = found
        segment.free(slot, entry.generation)
        self._map.remove(entry.name, Place(segment.number, slot))

    def segment(self, number: int) -> Segment | None:
        """The open segment of this number; None when there is no such one."""
        segment = self._segments.get(number)
        if segment is not None:
            return segment
        try:
            fresh = Segment(self.directory, number, self._store_id, self.io)
        except FileNotFoundError:
            return None
        except BadSegment:
            self._discard(number)
            return None
        with self._lock:
            return self._segments.setdefault(number, fresh)

    def segments(self) -> list[Segment]:
        """Those on disk now, in no order."""
        numbers = [
            int(entry.name[:8], 16)
            for entry in os.scandir(self.directory)
            if _INDEX_NAME.fullmatch(entry.name)
        ]
        found = [self.segment(number) for number in numbers]
        return [segment for segment in found if segment is not None]

    def create(self, num_slots: int, number: int) -> Segment | None:
        """A new segment, owned by nobody; call it while holding the store's lock."""
        shape = SegmentShape(self._store_id, number, self.slot_bytes, num_slots)
        create_segment(self.directory, shape, self.io)
        return self.segment(number)

    def refresh(self) -> None:
        """Let go of removed segments, and take the map that others may have put in place."""
        with self._lock:
            for number, segment in list(self._segments.items()):
                if segment.is_removed():
                    del self._segments[number]
        if self._map.is_removed():
            try:
                self._map = KeyMap(self.directory / _MAP_NAME, self._store_id)
            except (BadMap, FileNotFoundError):
                return  # none is in place: the old one serves until a process makes a new one
            for segment in list(self._segments.values()):
                if segment.is_owned:
                    self.reindex(segment)

    def forget_segment(self, segment: Segment) -> None:
        """Delete a segment that this process owns."""
        segment.remove()
        with self._lock:
            self._segments.pop(segment.number, None)
        segment.disown()

    def reindex(self, segment: Segment) -> None:
        """Make sure that the map leads to every block of the segment."""
        for found in self.blocks_of(segment):
            place = Place(segment.number, found.slot)
            if place not in self._map.places(found.entry.name):
                self._map.add(found.entry.name, place, self._is_stale)

    def blocks_of(self, segment: Segment) -> Iterator[Found]:
        for first in range(0, segment.shape.num_slots, SCAN_SLOTS):
            rows = segment.scan(first, SCAN_SLOTS)
            for index in np.nonzero(rows["state"] == SlotState.VALID)[0].tolist():
                entry = segment.entry(first + index)
                if entry is not None:
                    yield Found(segment, first + index, entry)

    def _is_stale(self, tag: bytes, place: Place) -> bool:
        segment = self.segment(place.segment)
        entry = segment.entry(place.slot) if segment else None
        return entry is None or tag_of(entry.name) != tag

    def _open_map(self) -> KeyMap:
        path = self.directory / _MAP_NAME
        wanted = buckets_for(self._max_blocks)
        try:
            opened = KeyMap(path, self._store_id)
            if opened.num_buckets * 2 >= wanted:
                return opened
        except (BadMap, FileNotFoundError):
            pass
        create_map(path, wanted, self._store_id)
        self._map = KeyMap(path, self._store_id)
        for segment in self.segments():
            self.reindex(segment)
        return self._map

    def _discard(self, number: int) -> None:
        """Remove a segment whose index file is damaged, unless somebody still works with it."""
        path = index_path(self.directory, number)
        try:
            index = open_descriptor(path, os.O_RDWR)
            fcntl.flock(index.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        log.error("a segment's index is damaged: its blocks are lost", extra={"path": str(path)})
        path.unlink(missing_ok=True)
        path.with_suffix(DATA_SUFFIX).unlink(missing_ok=True)
        self._on_damaged()
