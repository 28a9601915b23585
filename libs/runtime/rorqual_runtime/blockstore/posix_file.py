"""A data file reached by system calls."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator

from rorqual_runtime.blockstore.descriptors import Descriptor
from rorqual_runtime.blockstore.record import PACKED_BYTES, PAGE_BYTES, BadRecord
from rorqual_runtime.blockstore.slot_io import (
    AlignedMemory,
    address_of,
    copy_bytes,
    pages_of,
)

O_DIRECT = getattr(os, "O_DIRECT", 0)
NO_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)
_VectorCall = Callable[[int, list[memoryview], int], int]


class PosixFile:
    """`SlotFile` over a descriptor."""

    def __init__(self, file: Descriptor, buffers: Buffers) -> None:
        self._file = file
        self.fd = file.fd
        self._buffers = buffers
        self.is_direct = bool(O_DIRECT and fcntl.fcntl(file.fd, fcntl.F_GETFL) & O_DIRECT)

    def read(self, offset: int, payload: memoryview) -> bytes:
        with self._buffers.borrowed() as buffer:
            header = buffer[:PAGE_BYTES]
            if self.address(payload):
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
            if self.address(payload):
                self._store([page, payload], offset)
                return
            staging = buffer[PAGE_BYTES : PAGE_BYTES + pages_of(payload.nbytes)]
            copy_bytes(payload, staging[: payload.nbytes])
            staging[payload.nbytes :] = bytes(staging.nbytes - payload.nbytes)
            self._store([page, staging], offset)

    def address(self, payload: memoryview) -> int:
        """Where its bytes are if the kernel can move them itself, else 0."""
        num_bytes = payload.nbytes
        if num_bytes == 0 or (self.is_direct and num_bytes % PAGE_BYTES):
            return 0
        address = address_of(payload)
        return 0 if self.is_direct and address % PAGE_BYTES else address

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
            return call(self.fd, parts, offset)
        except OSError as error:
            if not self.is_direct or error.errno not in NO_DIRECT:
                raise
            self.is_direct = False
            flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
            fcntl.fcntl(self.fd, fcntl.F_SETFL, flags & ~O_DIRECT)
            return call(self.fd, parts, offset)


class Buffers:
    """Page-aligned buffers of one size, kept for the next who needs one."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._free: deque[AlignedMemory] = deque()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[memoryview]:
        with self._lock:
            memory = self._free.pop() if self._free else None
        memory = memory or AlignedMemory(self._num_bytes)
        try:
            yield memory.view
        finally:
            with self._lock:
                self._free.append(memory)
