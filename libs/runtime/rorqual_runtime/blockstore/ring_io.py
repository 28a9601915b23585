"""Many records at once, in one thread: a ring that is kept filled."""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from rorqual_runtime.blockstore.posix_file import PosixFile
from rorqual_runtime.blockstore.record import PACKED_BYTES, PAGE_BYTES
from rorqual_runtime.blockstore.slot_io import (
    AlignedMemory,
    Move,
    Moves,
    copy_bytes,
    pages_of,
)
from rorqual_runtime.blockstore.uring import READV, WRITEV, Uring

_MAX_ENTRIES, _MIN_ENTRIES = 64, 4
_MAX_STAGING_BYTES = 8 << 20
_GROUP = 8
"""Started at once, before as many of those that are done are looked at: so what is looked at does
not keep the device waiting."""
_IOVECS = struct.Struct("<QQQQ")


class RingIo:
    """Moves records of `PosixFile`s. For the one thread that made it, one `each` at a time."""

    def __init__(self, record_bytes: int) -> None:
        """record_bytes: of the largest record, in whole pages. Raises: OSError."""
        self._record_bytes = record_bytes
        num_entries = _MIN_ENTRIES
        while num_entries < _MAX_ENTRIES and num_entries * 2 * record_bytes <= _MAX_STAGING_BYTES:
            num_entries *= 2
        self._ring = Uring(num_entries)
        self._staging = AlignedMemory(num_entries * record_bytes)
        self._iovecs = AlignedMemory(num_entries * _IOVECS.size)
        self._free = list(range(num_entries))

    def each(self, moves: Iterator[Move], *, is_read: bool) -> Moves:
        """As `SlotIo.read_each` and `SlotIo.write_each`."""
        under_way: dict[int, _Flight] = {}
        done: deque[Move] = deque()
        try:
            while True:
                num_begun = 0
                for move in itertools.islice(moves, min(_GROUP, len(self._free))):
                    self._begin(move, is_read, under_way)
                    num_begun += 1
                if not (under_way or done):
                    return
                may_go_on = done or num_begun == _GROUP
                num_wanted = 0 if may_go_on else -(-len(under_way) // 4)
                done += self._finished(under_way, num_wanted, is_read)
                for _ in range(min(_GROUP, len(done))):
                    yield done.popleft()
        finally:
            while under_way:
                self._finished(under_way, len(under_way), is_read)

    def _begin(self, move: Move, is_read: bool, under_way: dict[int, _Flight]) -> None:
        file, payload = move.file, move.payload
        assert isinstance(file, PosixFile)
        entry = self._free.pop()
        page = self._staging.address + entry * self._record_bytes
        address = file.address(payload)
        if address:
            flight = _Flight(move, False, PAGE_BYTES + payload.nbytes)
            parts = page, PAGE_BYTES, address, payload.nbytes
        else:
            flight = _Flight(move, True, PAGE_BYTES + pages_of(payload.nbytes))
            parts = page, flight.num_bytes, 0, 0
        if not is_read:
            self._stage(flight, entry * self._record_bytes)
        at = entry * _IOVECS.size
        _IOVECS.pack_into(self._iovecs.view, at, *parts)
        opcode, iovecs = READV if is_read else WRITEV, self._iovecs.address + at
        self._ring.request(opcode, file.fd, move.offset, iovecs, 2 - flight.is_staged, entry)
        under_way[entry] = flight

    def _finished(
        self, under_way: dict[int, _Flight], num_wanted: int, is_read: bool
    ) -> list[Move]:
        """Wait for so many; what did not move whole is tried by itself, which says why."""
        finished = []
        for entry, result in self._ring.enter(num_wanted):
            flight = under_way.pop(entry)
            if result != flight.num_bytes:
                (flight.move.read if is_read else flight.move.write)()
            elif is_read:
                self._unload(flight, entry * self._record_bytes)
            self._free.append(entry)
            finished.append(flight.move)
        return finished

    def _stage(self, flight: _Flight, at: int) -> None:
        """Lay out what is to be written."""
        memory, payload = self._staging.view, flight.move.payload
        memory[at : at + PAGE_BYTES] = flight.move.header.ljust(PAGE_BYTES, b"\0")
        if flight.is_staged:
            end = at + PAGE_BYTES + payload.nbytes
            copy_bytes(payload, memory[at + PAGE_BYTES : end])
            memory[end : at + flight.num_bytes] = bytes(-payload.nbytes % PAGE_BYTES)

    def _unload(self, flight: _Flight, at: int) -> None:
        """Take what was read."""
        memory, payload = self._staging.view, flight.move.payload
        flight.move.header = bytes(memory[at : at + PACKED_BYTES])
        if flight.is_staged:
            start = at + PAGE_BYTES
            copy_bytes(memory[start : start + payload.nbytes], payload)


class _Flight(NamedTuple):
    move: Move
    is_staged: bool
    """Whether the payload goes through memory of ours."""
    num_bytes: int
    """To be moved."""
