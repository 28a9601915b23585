"""Reading and writing whole records of segment files: one interface, several ways.

Direct I/O wants page-aligned memory; what is not goes through a pool of aligned buffers. The kernel
call of each record runs without the interpreter's lock, so a few threads keep a device busy.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from rorqual_runtime.blockstore.descriptors import Descriptor, open_descriptor
from rorqual_runtime.blockstore.record import PACKED_BYTES, PAGE_BYTES, BadRecord

IoMode = Literal["direct", "buffered"]
_O_DIRECT = getattr(os, "O_DIRECT", 0)
_NO_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)
_VectorCall = Callable[[int, list[memoryview], int], int]


class SlotFile(Protocol):
    """The data file of one segment, open. Offsets are multiples of PAGE_BYTES.

    A record is a page for its header, then the payload. Safe for threads.
    """

    def read(self, offset: int, payload: memoryview) -> bytes:
        """Fill payload; returns the header's bytes.

        Raises: BadRecord when the file ends before it, OSError.
        """
        ...

    def write(self, offset: int, header: bytes, payload: memoryview) -> None:
        """Raises: OSError, also when only a part could be written."""
        ...


class SlotIo(Protocol):
    """How a store reaches the data files of its segments."""

    def create(self, path: Path, num_bytes: int) -> None:
        """A new file with its space set aside. Raises: OSError, leaving no file."""
        ...

    def open(self, path: Path) -> SlotFile:
        """Raises: OSError."""
        ...


class PosixIo:
    """`SlotIo` by system calls, past the page cache where mode and file system allow it."""

    def __init__(self, mode: IoMode, max_record_bytes: int) -> None:
        """max_record_bytes: the largest record, header page included."""
        self._flags = _O_DIRECT if mode == "direct" else 0
        self._buffers = AlignedBuffers(max_record_bytes)

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
            if not self._flags or error.errno not in _NO_DIRECT:
                raise
            return PosixFile(open_descriptor(path, flags), self._buffers)


class PosixFile:
    """`SlotFile` over a descriptor."""

    def __init__(self, file: Descriptor, buffers: AlignedBuffers) -> None:
        self._file = file
        self._buffers = buffers
        self._is_direct = bool(_O_DIRECT and fcntl.fcntl(file.fd, fcntl.F_GETFL) & _O_DIRECT)

    def read(self, offset: int, payload: memoryview) -> bytes:
        with self._buffers.borrowed() as buffer:
            header = buffer[:PAGE_BYTES]
            if self._takes(payload):
                self._fill([header, payload], offset)
            else:
                staging = buffer[PAGE_BYTES : PAGE_BYTES + pages_of(payload.nbytes)]
                self._fill([header, staging], offset)
                copy_bytes(staging[: payload.nbytes], payload)
            return bytes(header[:PACKED_BYTES])

    def write(self, offset: int, header: bytes, payload: memoryview) -> None:
        with self._buffers.borrowed() as buffer:
            page = buffer[:PAGE_BYTES]
            page[:] = header.ljust(PAGE_BYTES, b"\0")
            if self._takes(payload):
                self._store([page, payload], offset)
                return
            staging = buffer[PAGE_BYTES : PAGE_BYTES + pages_of(payload.nbytes)]
            copy_bytes(payload, staging[: payload.nbytes])
            staging[payload.nbytes :] = bytes(staging.nbytes - payload.nbytes)
            self._store([page, staging], offset)

    def _takes(self, payload: memoryview) -> bool:
        """Whether the kernel can move these bytes itself."""
        return not self._is_direct or is_aligned(payload)

    def _fill(self, parts: list[memoryview], offset: int) -> None:
        if self._moved(os.preadv, parts, offset) < sum(part.nbytes for part in parts):
            raise BadRecord("the file ends within the record")

    def _store(self, parts: list[memoryview], offset: int) -> None:
        if self._moved(os.pwritev, parts, offset) < sum(part.nbytes for part in parts):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _moved(self, call: _VectorCall, parts: list[memoryview], offset: int) -> int:
        """Bytes read or written. Some file systems open for direct I/O and then refuse it: it is
        not tried again on this file."""
        try:
            return call(self._file.fd, parts, offset)
        except OSError as error:
            if not self._is_direct or error.errno not in _NO_DIRECT:
                raise
            self._is_direct = False
            flags = fcntl.fcntl(self._file.fd, fcntl.F_GETFL)
            fcntl.fcntl(self._file.fd, fcntl.F_SETFL, flags & ~_O_DIRECT)
            return call(self._file.fd, parts, offset)


class AlignedBuffers:
    """Page-aligned buffers of one size, kept for the next who needs one."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = pages_of(num_bytes)
        self._free: deque[mmap.mmap] = deque()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[memoryview]:
        with self._lock:
            buffer = self._free.pop() if self._free else None
        if buffer is None:
            buffer = mmap.mmap(-1, self._num_bytes)
        try:
            yield memoryview(buffer)
        finally:
            with self._lock:
                self._free.append(buffer)


def pages_of(num_bytes: int) -> int:
    """num_bytes rounded up to whole pages."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


def is_aligned(buffer: memoryview) -> bool:
    """Whether the kernel can read or write this memory directly."""
    if buffer.nbytes % PAGE_BYTES:
        return False
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address % PAGE_BYTES == 0


def copy_bytes(source: memoryview, target: memoryview) -> None:
    """Copy between buffers of one size; other threads run meanwhile."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
