"""How much is in each shard: counters in one small file that all processes of a store map.

They are a guide, not the truth: a process killed between writing a block and counting it leaves
them off by that block until the shard is scanned again, which every store does all the time.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

NUM_SHARDS = 256
_MAGIC = int.from_bytes(b"RQUSAGE1", "little")
_HEADER_WORDS = 8  # magic, cursor, unused
_FILE_NAME = "usage-1"  # a new number for a new layout: a mapped file must not shrink
_FILE_BYTES = 8 * (_HEADER_WORDS + 2 * NUM_SHARDS)
_LOCK_WAIT_S = 0.02


class Usage:
    """Bytes and blocks per shard. Thread- and process-safe; never waits long for a lock."""

    def __init__(self, directory: Path) -> None:
        path = directory / _FILE_NAME
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._thread_lock = threading.Lock()
        os.posix_fallocate(self._fd, 0, _FILE_BYTES)  # touching a page without a block is fatal
        words = np.frombuffer(mmap.mmap(self._fd, _FILE_BYTES), np.int64)
        self._header = words[:_HEADER_WORDS]
        self._bytes = words[_HEADER_WORDS : _HEADER_WORDS + NUM_SHARDS]
        self._blocks = words[_HEADER_WORDS + NUM_SHARDS :]
        self.is_new = int(self._header[0]) != _MAGIC
        """Nobody has counted yet: scan every shard, then call `mark_counted`."""

    @property
    def num_bytes(self) -> int:
        return max(0, int(self._bytes.sum()))

    @property
    def num_blocks(self) -> int:
        return max(0, int(self._blocks.sum()))

    def mark_counted(self) -> None:
        self._header[0] = _MAGIC
        self.is_new = False

    def of_shard(self, shard: int) -> tuple[int, int]:
        """(bytes, blocks) as counted."""
        return int(self._bytes[shard]), int(self._blocks[shard])

    def add(self, shard: int, num_bytes: int, num_blocks: int) -> None:
        with self._locked():
            self._bytes[shard] += num_bytes
            self._blocks[shard] += num_blocks

    def correct(self, shard: int, before: tuple[int, int], scanned: tuple[int, int]) -> None:
        """Take over what a scan found; `before` is the count when it began.

        A block put while the scan ran may be counted twice until the next scan, never missed.
        """
        self.add(shard, scanned[0] - before[0], scanned[1] - before[1])

    def next_shard(self) -> int:
        """The shard to scan next: all processes take turns."""
        with self._locked():
            shard = int(self._header[1]) % NUM_SHARDS
            self._header[1] = shard + 1
        return shard

    def go_on_after(self, shard: int) -> None:
        """Let the next scan of any process begin behind this shard."""
        with self._locked():
            self._header[1] = shard + 1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclusive among threads; among processes too, unless a holder is stuck: then go on."""
        with self._thread_lock:
            is_locked = self._lock_file()
            try:
                yield
            finally:
                if is_locked:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _lock_file(self) -> bool:
        give_up = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > give_up:
                    return False
                time.sleep(0.0005)
            except OSError:  # a file system without locks: scans make up for lost counts
                return False
