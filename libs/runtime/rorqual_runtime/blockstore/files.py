"""The directory of a block store: shards of record files, and temporary files being written.

A record appears under its name only when it is complete: it is written under `tmp/` and renamed.
The access time of a file is set to its expiry, so that a scan need not open it; it is a hint that
the header confirms.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rorqual_runtime.blockstore.record import HEADER_BYTES, BlockName
from rorqual_runtime.blockstore.usage import NUM_SHARDS

_O_NOATIME = getattr(os, "O_NOATIME", 0)
_ABANDONED_TEMP_S = 3600.0


@dataclass(frozen=True)
class StoredFile:
    """A record file as a scan sees it."""

    path: Path
    shard: int
    num_bytes: int
    used_ns: int
    expires_ns: int
    """A hint: the header has the truth."""


class BlockFiles:
    """Paths and raw file operations. Every method may raise OSError."""

    def __init__(self, root: Path) -> None:
        self._temp = root / "tmp"
        self._temp.mkdir(parents=True, exist_ok=True)
        self._shards = [root / f"{shard:02x}" for shard in range(NUM_SHARDS)]

    def path_of(self, name: BlockName) -> Path:
        return self._shards[name.shard] / name.file_name

    def open_record(self, path: Path) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            return os.open(path, flags | _O_NOATIME)
        except PermissionError:  # another user's file
            return os.open(path, flags)

    def read_header(self, path: Path) -> bytes:
        fd = self.open_record(path)
        try:
            return os.pread(fd, HEADER_BYTES, 0)
        finally:
            os.close(fd)

    def write_record(
        self, name: BlockName, header: bytes, payload: memoryview, times_ns: tuple[int, int]
    ) -> None:
        """Write and make visible in one step. times_ns: (expires, last use)."""
        temp = self._temp / f"{os.getpid()}-{secrets.token_hex(8)}"
        fd = _create(temp)
        try:
            _lock(fd)  # says that the writer lives
            _write_all(fd, header, payload)
            os.utime(fd, ns=times_ns)
            _rename(temp, self.path_of(name))
        except BaseException:
            with contextlib.suppress(OSError):
                temp.unlink()
            raise
        finally:
            os.close(fd)

    def scan(self, shard: int) -> Iterator[StoredFile]:
        """The files of one shard, in no order; those that vanish meanwhile are left out."""
        try:
            entries = os.scandir(self._shards[shard])
        except FileNotFoundError:
            return
        with entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat(follow_symlinks=False)
                    yield StoredFile(
                        Path(entry.path), shard, stat.st_size, stat.st_mtime_ns, stat.st_atime_ns
                    )

    def remove_dead_temps(self) -> int:
        """Unlink temporary files whose writer has died. Returns how many."""
        num_removed = 0
        for path in self._temp.iterdir():
            with contextlib.suppress(OSError):
                num_removed += _remove_if_dead(path)
        return num_removed


def _create(temp: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(temp, flags, 0o644)
    except FileNotFoundError:  # somebody has deleted the store: begin it again
        temp.parent.mkdir(parents=True, exist_ok=True)
        return os.open(temp, flags, 0o644)


def _rename(temp: Path, path: Path) -> None:
    try:
        temp.rename(path)
    except FileNotFoundError:  # the first block of its shard
        path.parent.mkdir(exist_ok=True)
        temp.rename(path)


def unlink_if_same(path: Path, stat: os.stat_result) -> bool:
    """Unlink the file that was looked at, not one that has replaced it meanwhile."""
    try:
        if path.stat().st_ino != stat.st_ino:
            return False
        path.unlink()
    except OSError:
        return False
    return True


def read_all(fd: int, header: bytearray, payload: memoryview) -> bool:
    """Fill both from the start of the file; False when it is too short."""
    wanted = len(header) + payload.nbytes
    done = os.preadv(fd, [header, payload], 0)
    while 0 < done < wanted:
        rest = payload[done - len(header) :] if done >= len(header) else None
        count = os.preadv(fd, [rest], done) if rest is not None else 0
        if count <= 0:
            break
        done += count
    return done == wanted


def _write_all(fd: int, header: bytes, payload: memoryview) -> None:
    total = len(header) + payload.nbytes
    done = os.writev(fd, [header, payload])
    while done < total:
        if done < len(header):
            done += os.write(fd, header[done:])
        else:
            done += os.write(fd, payload[done - len(header) :])


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_if_dead(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        is_old = time.time() - os.fstat(fd).st_mtime > _ABANDONED_TEMP_S
        if not (_lock(fd) or is_old):
            return False
        path.unlink()
        return True
    finally:
        os.close(fd)
