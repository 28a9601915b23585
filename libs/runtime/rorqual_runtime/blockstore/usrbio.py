"""Records of a 3FS mount by its zero-copy client, where `hf3fs_py_usrbio` is installed.

The client moves data between storage and shared memory that it was told of, past the mount's FUSE
process; index files still go through the mount. Written against the client's public interface and
tested with a stand-in of the same interface: it has not run on a real 3FS.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import importlib
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, Protocol

from rorqual_runtime.blockstore.descriptors import Descriptor, open_descriptor
from rorqual_runtime.blockstore.io_threads import IoThreads
from rorqual_runtime.blockstore.posix_io import PosixIo
from rorqual_runtime.blockstore.record import PACKED_BYTES, PAGE_BYTES, BadRecord
from rorqual_runtime.blockstore.slot_io import IoMode, Move, Moves, SlotIo, copy_bytes, pages_of

_WAIT = datetime.timedelta(seconds=30)


class UsrbioClient(Protocol):
    """What is used of the module `hf3fs_fuse.io`."""

    def register_fd(self, fd: int) -> Any: ...

    def deregister_fd(self, fd: int) -> Any: ...

    def extract_mount_point(self, path: str) -> str | None:
        """Empty or None for a path outside any 3FS mount."""
        ...

    def make_iovec(self, shm: SharedMemory, mount_point: str) -> Any: ...

    def make_ioring(self, mount_point: str, entries: int, for_read: bool = True) -> Any: ...


def choose_io(directory: Path, mode: IoMode, record_bytes: int) -> SlotIo:
    """The zero-copy client on a 3FS mount that has it, else system calls."""
    client = _installed_client()
    if client is not None:
        mount_point = client.extract_mount_point(str(directory.resolve()))
        if mount_point:
            return UsrbioIo(client, mount_point, record_bytes)
    return PosixIo(mode, record_bytes)


def _installed_client() -> UsrbioClient | None:
    try:
        module: UsrbioClient = importlib.import_module("hf3fs_fuse.io")
    except ImportError:
        return None
    return module


class UsrbioIo:
    """`SlotIo` over the zero-copy client: each thread in a call has a channel of its own."""

    def __init__(self, client: UsrbioClient, mount_point: str, record_bytes: int) -> None:
        self._client = client
        self._mount_point = mount_point
        self._record_bytes = pages_of(record_bytes)
        self._idle: deque[_Channel] = deque()
        self._lock = threading.Lock()
        self._threads = IoThreads()

    def create(self, path: Path, num_bytes: int) -> None:
        """3FS gives space as it is written; setting it aside would write every page."""
        with path.open("xb"):
            os.truncate(path, num_bytes)

    def open(self, path: Path) -> UsrbioFile:
        return UsrbioFile(self._client, open_descriptor(path, os.O_RDWR), self)

    def read_each(self, moves: Iterator[Move], count: int) -> Moves:
        return self._threads.each(Move.read, moves, count)

    def write_each(self, moves: Iterator[Move], count: int) -> Moves:
        return self._threads.each(Move.write, moves, count)

    def close(self) -> None:
        self._threads.close()
        self._idle.clear()

    @contextlib.contextmanager
    def channel(self) -> Iterator[_Channel]:
        """One that nobody else uses; after an error it is thrown away. Raises: OSError."""
        with self._lock:
            channel = self._idle.pop() if self._idle else None
        if channel is None:
            memory = SharedMemory(create=True, size=self._record_bytes)
            channel = _Channel(self._client, self._mount_point, memory)
        yield channel
        with self._lock:
            self._idle.append(channel)


class UsrbioFile:
    """`SlotFile` of a file on a 3FS mount."""

    def __init__(self, client: UsrbioClient, file: Descriptor, io: UsrbioIo) -> None:
        """Raises: OSError."""
        self._client, self._file, self._io = client, file, io
        self._is_registered = False
        with _as_os_error():
            client.register_fd(file.fd)
        self._is_registered = True

    def __del__(self) -> None:
        if self._is_registered:
            self._client.deregister_fd(self._file.fd)

    def read(self, offset: int, payload: memoryview) -> bytes:
        with self._io.channel() as channel:
            count = PAGE_BYTES + pages_of(payload.nbytes)
            if channel.move(self._file.fd, offset, count, is_read=True) < count:
                raise BadRecord("the file ends within the record")
            copy_bytes(channel.memory[PAGE_BYTES : PAGE_BYTES + payload.nbytes], payload)
            return bytes(channel.memory[:PACKED_BYTES])

    def write(self, offset: int, header: bytes, payload: memoryview) -> None:
        with self._io.channel() as channel:
            count, end = PAGE_BYTES + pages_of(payload.nbytes), PAGE_BYTES + payload.nbytes
            channel.memory[:PAGE_BYTES] = header.ljust(PAGE_BYTES, b"\0")
            copy_bytes(payload, channel.memory[PAGE_BYTES:end])
            channel.memory[end:count] = bytes(count - end)
            if channel.move(self._file.fd, offset, count, is_read=False) < count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Channel:
    """Shared memory of one record and the two rings that move it."""

    def __init__(self, client: UsrbioClient, mount_point: str, memory: SharedMemory) -> None:
        """memory: its own from now on. Raises: OSError, leaving nothing of it behind."""
        self._shm = memory
        self._iovec: Any = None
        self._rings: dict[bool, Any] = {}
        try:
            assert self._shm.buf is not None
            self.memory = self._shm.buf
            with _as_os_error():
                self._iovec = client.make_iovec(self._shm, mount_point)
                for is_read in (True, False):
                    self._rings[is_read] = client.make_ioring(mount_point, 1, for_read=is_read)
        finally:
            self._shm.unlink()  # the client holds it by now; if we are killed nothing stays behind

    def __del__(self) -> None:
        self._rings.clear()
        self._iovec = None
        self.memory.release()
        self._shm.close()

    def move(self, fd: int, offset: int, count: int, *, is_read: bool) -> int:
        """Bytes moved. Raises: OSError, TimeoutError."""
        ring = self._rings[is_read]
        with _as_os_error():
            ring.prepare(self._iovec[:count], is_read, fd, offset)
            done: Sequence[Any] = ring.submit().wait(min_results=1, timeout=_WAIT)
        if not done:
            raise TimeoutError(errno.ETIMEDOUT, "3FS did not answer in time")
        if done[0].result < 0:
            raise OSError(-done[0].result, os.strerror(-done[0].result))
        return int(done[0].result)


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """What the client itself says is wrong, as a failure of this storage."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(errno.ENODEV, str(error)) from error
