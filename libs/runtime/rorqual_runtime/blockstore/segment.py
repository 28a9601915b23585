"""One segment: a preallocated data file of equal slots and a small index file beside it.

The index is a page that says what the segment is, then one entry a slot. The truth about a slot is
its record; the entry only says where to look. Whoever allocates slots of a segment owns it, by a
lock on the index file that ends with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash

from rorqual_runtime.blockstore.descriptors import open_descriptor
from rorqual_runtime.blockstore.entries import (
    ENTRY_BYTES,
    ENTRY_DTYPE,
    USE_OFFSET,
    Entry,
    SlotState,
    free_entry,
    parse_entry,
)
from rorqual_runtime.blockstore.record import PAGE_BYTES, Address
from rorqual_runtime.blockstore.slot_io import Move, SlotFile, SlotIo

_MAGIC = b"RQINDEX2"
_FIELDS = struct.Struct("<8sIIIxxxx16s")  # magic, number, slot bytes, slots, store
_HEAD = struct.Struct("<IB")
"""An entry's generation and state."""
_VALID = int(SlotState.VALID)
_DIGEST_BYTES = 16
_DIRTY_OFFSET = 2048
SCAN_SLOTS = 4096
"""Slots that one look at an index file takes in."""
INDEX_SUFFIX, DATA_SUFFIX = ".index", ".data"


class BadSegment(Exception):
    """The index file is damaged, or of another store: its segment is of no use."""


@dataclass(frozen=True, slots=True)
class SegmentShape:
    """What a segment is, for life."""

    store_id: bytes
    number: int
    slot_bytes: int
    num_slots: int

    @property
    def data_bytes(self) -> int:
        return self.slot_bytes * self.num_slots

    def pack(self) -> bytes:
        fields = _FIELDS.pack(_MAGIC, self.number, self.slot_bytes, self.num_slots, self.store_id)
        return (fields + xxhash.xxh3_128_digest(fields)).ljust(PAGE_BYTES, b"\0")

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Raises: BadSegment."""
        fields = raw[: _FIELDS.size]
        if raw[_FIELDS.size : _FIELDS.size + _DIGEST_BYTES] != xxhash.xxh3_128_digest(fields):
            raise BadSegment("wrong checksum of the index file")
        magic, number, slot_bytes, num_slots, store_id = _FIELDS.unpack(fields)
        if magic != _MAGIC or min(slot_bytes, num_slots) < 1:
            raise BadSegment("another format")
        return cls(store_id, number, slot_bytes, num_slots)


def index_path(directory: Path, number: int) -> Path:
    return directory / f"{number:08x}{INDEX_SUFFIX}"


def create_segment(directory: Path, shape: SegmentShape, io: SlotIo) -> None:
    """Both files, the index last: with it the segment exists. Raises: OSError, leaving nothing."""
    index = index_path(directory, shape.number)
    data, fresh = index.with_suffix(DATA_SUFFIX), index.with_suffix(".new")
    io.create(data, shape.data_bytes)
    try:
        fresh.write_bytes(shape.pack())
        os.truncate(fresh, PAGE_BYTES + shape.num_slots * ENTRY_BYTES)
        fresh.rename(index)
    except BaseException:
        for path in (fresh, data):
            path.unlink(missing_ok=True)
        raise


class Segment:
    """An open segment. Safe for threads; entries may change under anyone's hands at any time."""

    def __init__(self, directory: Path, number: int, store_id: bytes, io: SlotIo) -> None:
        """Raises: BadSegment, OSError."""
        self._index_path = index_path(directory, number)
        self._index = open_descriptor(self._index_path, os.O_RDWR)
        self.shape = SegmentShape.parse(os.pread(self._index.fd, PAGE_BYTES, 0))
        if (self.shape.number, self.shape.store_id) != (number, store_id):
            raise BadSegment("the index file of another segment")
        self._data: SlotFile = io.open(self._index_path.with_suffix(DATA_SUFFIX))
        self.is_owned = False

    @property
    def number(self) -> int:
        return self.shape.number

    def address(self, slot: int, generation: int) -> Address:
        return Address(self.shape.store_id, self.number, slot, generation)

    def move(self, tag: int, slot: int, payload: memoryview, header: bytes = b"") -> Move:
        """Of the slot's record. header: of one that is to be written."""
        return Move(tag, self._data, slot * self.shape.slot_bytes, payload, header)

    def entry(self, slot: int) -> Entry | None:
        """None for a slot that is free or whose entry is damaged. Raises: OSError."""
        if slot >= self.shape.num_slots:
            return None
        return parse_entry(self._raw_entry(slot), self.number, slot)

    def entries(self, slots: Sequence[int]) -> list[Entry | None]:
        """`entry` of each, all read at once; for slots near each other. Raises: OSError."""
        first = min(slots, default=0)
        raw = self.raw_entries(first, max(slots, default=-1) + 1 - first)
        offsets = [(slot - first) * ENTRY_BYTES for slot in slots]
        return [
            parse_entry(raw[offset : offset + ENTRY_BYTES], self.number, slot)
            for slot, offset in zip(slots, offsets, strict=True)
        ]

    def holds(self, slot: int, generation: int) -> bool:
        """Whether a record of this generation is still there. Raises: OSError."""
        return self._raw_entry(slot)[:5] == _HEAD.pack(generation, _VALID)

    def publish(self, slot: int, entry: Entry) -> None:
        """Raises: OSError."""
        os.pwrite(self._index.fd, entry.pack(self.number, slot), _place(slot))

    def free(self, slot: int, generation: int) -> None:
        """Raises: OSError."""
        os.pwrite(self._index.fd, free_entry(generation), _place(slot))

    def scrap(self, slot: int) -> bool:
        """Free a slot whose entry is damaged. False: it is not, or was being written just now.
        Raises: OSError."""
        raw = self._raw_entry(slot)
        if raw[4:5] in (b"", bytes([SlotState.FREE])) or self.entry(slot) is not None:
            return False
        if raw != self._raw_entry(slot):
            return False
        self.free(slot, secrets.randbits(32))
        return True

    def note_use(self, slot: int, entry: Entry) -> None:
        """Write the entry's hints only. Raises: OSError."""
        os.pwrite(self._index.fd, entry.pack_use(), _place(slot) + USE_OFFSET)

    def scan(self, first: int, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        """ENTRY_DTYPE rows of slots first, first + 1, ...; fewer at the end of the segment, and
        free ones for what the file lacks. Raises: OSError."""
        return np.frombuffer(self.raw_entries(first, count), ENTRY_DTYPE)

    def raw_entries(self, first: int, count: int) -> bytes:
        """The bytes that `scan` shows."""
        count = max(0, min(count, self.shape.num_slots - first))
        raw = os.pread(self._index.fd, count * ENTRY_BYTES, _place(first))
        return raw.ljust(count * ENTRY_BYTES, b"\0")

    def num_valid(self) -> int:
        """Slots in use. Raises: OSError."""
        firsts = range(0, self.shape.num_slots, SCAN_SLOTS)
        return sum(
            int(np.count_nonzero(self.scan(first, SCAN_SLOTS)["state"] == SlotState.VALID))
            for first in firsts
        )

    def own(self) -> bool:
        """Become the one who allocates here. False: another one is."""
        if not self.is_owned and not self.is_removed() and self._lock():
            self.is_owned = not self.is_removed()
        return self.is_owned

    def disown(self) -> None:
        if self.is_owned:
            self.is_owned = False
            with contextlib.suppress(OSError):
                fcntl.flock(self._index.fd, fcntl.LOCK_UN)

    def is_dirty(self) -> bool:
        """Whether an owner has not said that all its blocks can be found. Raises: OSError."""
        return os.pread(self._index.fd, 1, _DIRTY_OFFSET) == b"\1"

    def set_dirty(self, is_dirty: bool) -> None:
        """Raises: OSError."""
        os.pwrite(self._index.fd, b"\1" if is_dirty else b"\0", _DIRTY_OFFSET)

    def is_removed(self) -> bool:
        return os.fstat(self._index.fd).st_nlink == 0

    def remove(self) -> None:
        """Delete the files, which it must own; others see only free slots. Raises: OSError."""
        zeros = bytes(PAGE_BYTES)
        end = PAGE_BYTES + self.shape.num_slots * ENTRY_BYTES
        for offset in range(PAGE_BYTES, end, PAGE_BYTES):
            os.pwrite(self._index.fd, zeros[: end - offset], offset)
        self._index_path.unlink(missing_ok=True)
        self._index_path.with_suffix(DATA_SUFFIX).unlink(missing_ok=True)

    def _raw_entry(self, slot: int) -> bytes:
        return os.pread(self._index.fd, ENTRY_BYTES, _place(slot))

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._index.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # no locks here: records prove themselves, two owners only lose blocks
            return True
        return True


def _place(slot: int) -> int:
    return PAGE_BYTES + slot * ENTRY_BYTES
