"""Records by system calls: io_uring for many at once where the kernel has it, else threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from rorqual_runtime.blockstore.descriptors import open_descriptor
from rorqual_runtime.blockstore.io_threads import IoThreads
from rorqual_runtime.blockstore.posix_file import NO_DIRECT, O_DIRECT, Buffers, PosixFile
from rorqual_runtime.blockstore.ring_io import RingIo
from rorqual_runtime.blockstore.slot_io import IoMode, Move, Moves, pages_of


class PosixIo:
    """`SlotIo` past the page cache where mode and file system allow it."""

    def __init__(self, mode: IoMode, max_record_bytes: int) -> None:
        """max_record_bytes: the largest record, header page included."""
        self._flags = O_DIRECT if mode == "direct" else 0
        self._record_bytes = pages_of(max_record_bytes)
        self._buffers = Buffers(self._record_bytes)
        self._threads = IoThreads()
        self._own = threading.local()

    def create(self, path: Path, num_bytes: int) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(fd, 0, num_bytes)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(fd)

    def open(self, path: Path) -> PosixFile:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            return PosixFile(open_descriptor(path, flags | self._flags), self._buffers)
        except OSError as error:
            if not self._flags or error.errno not in NO_DIRECT:
                raise
            return PosixFile(open_descriptor(path, flags), self._buffers)

    def read_each(self, moves: Iterator[Move], count: int) -> Moves:
        if count > 1 and (ring := self._ring()):
            return ring.each(moves, is_read=True)
        return self._threads.each(Move.read, moves, count)

    def write_each(self, moves: Iterator[Move], count: int) -> Moves:
        if count > 1 and (ring := self._ring()):
            return ring.each(moves, is_read=False)
        return self._threads.each(Move.write, moves, count)

    def close(self) -> None:
        self._threads.close()

    def _ring(self) -> RingIo | None:
        """This thread's own; None where it can't have one."""
        if not hasattr(self._own, "ring"):
            try:
                self._own.ring = RingIo(self._record_bytes)
            except OSError:
                self._own.ring = None
        ring: RingIo | None = self._own.ring
        return ring
