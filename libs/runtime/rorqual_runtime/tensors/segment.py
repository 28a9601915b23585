"""POSIX shared-memory segments that cannot outlive their owner for long.

The owner holds an exclusive lock on the segment's file for as long as it lives; the kernel drops
it with the process, however that ends. Whoever can take the lock knows that the owner is gone, in
any pid namespace. (`multiprocessing.shared_memory` would unlink a segment when a reader exits.)
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path

from rorqual_runtime.errors import NoCapacity, StaleTicket

SHM_DIR = Path("/dev/shm")
_PREFIX = "rorqual-tensors-"
_NAME = re.compile(rf"{_PREFIX}[0-9a-f]{{32}}")
_MAGIC = b"RQTENSR1"
_HEADER = struct.Struct(
    "<8sIIQQQQ"
)  # magic, version, slots, payload start, size, incarnation, open
_FORMAT_VERSION = 1
_OPEN_WORD = 5  # index of the last header field in 64-bit words
HEADER_BYTES = 4096
SLOT_BYTES = 64
_MAX_SLOTS = 65_536
_GRANULE_BYTES = 1 << 20
_MADV_POPULATE_READ = 22


@dataclass(frozen=True)
class SegmentShape:
    """Where things are in a segment: one header page, the slot table, the payload area."""

    num_slots: int
    payload_start: int
    size_bytes: int
    incarnation: int

    @classmethod
    def for_size(cls, payload_bytes: int, incarnation: int) -> SegmentShape:
        num_slots = min(_MAX_SLOTS, max(64, payload_bytes // 16_384))
        table_bytes = num_slots * SLOT_BYTES
        payload_start = HEADER_BYTES + -(-table_bytes // HEADER_BYTES) * HEADER_BYTES
        return cls(num_slots, payload_start, payload_start + payload_bytes, incarnation)

    def slot_header_offset(self, slot: int) -> int:
        return HEADER_BYTES + slot * SLOT_BYTES


class OwnedSegment:
    """A segment this process made; its memory is backed on first use, not at once."""

    def __init__(self, payload_bytes: int, incarnation: int) -> None:
        """Raises: NoCapacity when shared memory is too small even for the slot table."""
        self.shape = SegmentShape.for_size(payload_bytes, incarnation)
        self.name, self._fd = _create_locked()
        self._backed = bytearray(-(-self.shape.size_bytes // _GRANULE_BYTES))
        try:
            os.ftruncate(self._fd, self.shape.size_bytes)
            self.back(0, self.shape.payload_start)
            self.map = mmap.mmap(self._fd, self.shape.size_bytes)
        except BaseException:
            self.unlink()
            raise
        self.words = memoryview(self.map)[: self.shape.payload_start].cast("Q")
        shape = self.shape
        _HEADER.pack_into(
            self.map, 0, _MAGIC, _FORMAT_VERSION, shape.num_slots, shape.payload_start,
            shape.size_bytes, shape.incarnation, 1,
        )  # fmt: skip

    def back(self, start: int, num_bytes: int) -> None:
        """Make the kernel reserve pages now: touching a page it cannot give is a fatal SIGBUS.

        Raises: NoCapacity when shared memory is full.
        """
        first, last = start // _GRANULE_BYTES, (start + num_bytes - 1) // _GRANULE_BYTES
        for granule in range(first, last + 1):
            if self._backed[granule]:
                continue
            offset = granule * _GRANULE_BYTES
            length = min(_GRANULE_BYTES, self.shape.size_bytes - offset)
            try:
                os.posix_fallocate(self._fd, offset, length)
            except OSError as error:
                raise NoCapacity(f"shared memory is full: {error.strerror}") from error
            self._backed[granule] = 1

    def unlink(self) -> None:
        """Remove the name and give up the lock; memory goes when the last mapping does."""
        if self._fd < 0:
            return
        with contextlib.suppress(FileNotFoundError):
            (SHM_DIR / self.name).unlink()
        os.close(self._fd)
        self._fd = -1

    def mark_closed(self) -> None:
        """Tell readers that have it mapped to let go."""
        self.words[_OPEN_WORD] = 0


def free_shm_bytes() -> int:
    """What shared memory can still take now."""
    stat = os.statvfs(SHM_DIR)
    return stat.f_bavail * stat.f_frsize


def _create_locked() -> tuple[str, int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:
        name = _PREFIX + secrets.token_hex(16)
        try:
            fd = os.open(SHM_DIR / name, flags, 0o600)
        except OSError as error:
            raise NoCapacity(f"no shared memory at {SHM_DIR}: {error.strerror}") from error
        if _try_lock(fd, fcntl.LOCK_EX) and os.fstat(fd).st_nlink:
            return name, fd
        os.close(fd)  # a cleaner took it for a dead one between open and lock


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class AttachedSegment:
    """Another process's segment, mapped read-only."""

    def __init__(self, name: str) -> None:
        """Raises: StaleTicket when there is no such live segment of ours on this host."""
        if not _NAME.fullmatch(name):
            raise StaleTicket("the ticket names no tensor segment")
        self.name = name
        try:
            self._fd = os.open(SHM_DIR / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise StaleTicket("the ticket's segment is gone") from error
        try:
            self.shape = self._read_shape()
            self.map = mmap.mmap(self._fd, self.shape.size_bytes, prot=mmap.PROT_READ)
        except BaseException:
            self.close()
            raise
        self.words = memoryview(self.map)[: self.shape.payload_start].cast("Q")
        self._mapped = bytearray(-(-self.shape.size_bytes // _GRANULE_BYTES))

    def prefault(self, start: int, num_bytes: int) -> None:
        """Map published bytes in one go: some 20 times cheaper than a page fault for each page.

        Only for what the owner has backed: a hole would be filled.
        """
        end_granule = -(-(start + num_bytes) // _GRANULE_BYTES)
        granule = self._mapped.find(0, start // _GRANULE_BYTES, end_granule)
        if granule < 0:
            return
        offset = granule * _GRANULE_BYTES
        length = min(end_granule * _GRANULE_BYTES, self.shape.size_bytes) - offset
        with contextlib.suppress(OSError):  # Linux before 5.14: pages are mapped one by one
            self.map.madvise(_MADV_POPULATE_READ, offset, length)
        self._mapped[granule:end_granule] = b"\1" * (end_granule - granule)

    def _read_shape(self) -> SegmentShape:
        raw = os.pread(self._fd, _HEADER.size, 0)
        if len(raw) < _HEADER.size:
            raise StaleTicket("the ticket's segment has no header")
        magic, version, num_slots, start, size, incarnation, is_open = _HEADER.unpack(raw)
        fits = HEADER_BYTES + num_slots * SLOT_BYTES <= start <= size
        if magic != _MAGIC or version != _FORMAT_VERSION or not is_open or not fits:
            raise StaleTicket("the ticket's segment is closed or of another format")
        if os.fstat(self._fd).st_size < size or not self.owner_is_alive():
            raise StaleTicket("the owner of the ticket's segment is gone")
        return SegmentShape(num_slots, start, size, incarnation)

    def owner_is_alive(self) -> bool:
        """False once the owning process has ended or has closed the segment."""
        if not _try_lock(self._fd, fcntl.LOCK_SH):
            return True
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return False

    def is_open(self) -> bool:
        """False once the owner has closed the segment in good order; cheap."""
        return self.words[_OPEN_WORD] == 1

    def close(self) -> None:
        """Forget the file; the mapping goes with the last array that uses it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def remove_dead_segments() -> int:
    """Unlink segments of this user whose owner has died. Returns how many there were."""
    num_removed = 0
    for path in SHM_DIR.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            num_removed += _NAME.fullmatch(path.name) is not None and _remove_if_dead(path)
    return num_removed


def _remove_if_dead(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid != os.geteuid() or not _try_lock(fd, fcntl.LOCK_EX):
            return False
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(fd)
