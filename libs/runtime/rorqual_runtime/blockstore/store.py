"""A block store in one directory of a local or shared file system."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rorqual_runtime.blockstore.backend import StoreStats
from rorqual_runtime.blockstore.eviction import Evictor
from rorqual_runtime.blockstore.files import BlockFiles, read_all, unlink_if_same
from rorqual_runtime.blockstore.record import (
    HEADER_BYTES,
    NEVER_UNIX_S,
    BadRecord,
    BlockName,
    RecordHeader,
    pack_header,
    parse_header,
)
from rorqual_runtime.blockstore.usage import Usage
from rorqual_runtime.clock import Clock, WallClock

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TOUCH_INTERVAL_S = 60.0
_PUTS_PER_MAINTENANCE = 32
_FULL = (errno.ENOSPC, errno.EDQUOT)


class BlockStore:
    """`BlockStoreBackend` over files: one record per block.

    Safe for threads and for processes on one directory at once, without a server: records are
    immutable and appear by rename, readers verify every byte, counters are corrected by scans.
    Over capacity, blocks go by oldest use. There is no fsync: after a power failure a block may
    be damaged, which its checksum tells.
    """

    def __init__(
        self, directory: Path | str, capacity_bytes: int, *, clock: Clock | None = None
    ) -> None:
        """Open or create. Raises: OSError when the directory cannot be used at all."""
        if capacity_bytes <= 0:
            raise ValueError(f"need capacity_bytes > 0; got {capacity_bytes}")
        self._clock = clock or WallClock()
        self._capacity_bytes = capacity_bytes
        root = Path(directory)
        self._files = BlockFiles(root)
        self._usage = Usage(root)
        self._counts: Counter[str] = Counter()
        self._counts_lock = threading.Lock()
        self._evictor = Evictor(self._files, self._usage, self._clock)
        self._files.remove_dead_temps()
        self._evictor.recount(everything=self._usage.is_new)

    def get(self, fingerprint: str, key: bytes, into: Buffer) -> bool:
        """Fill `into` with the block. False: a miss, also when what was found is damaged, expired
        or not of this size (it is deleted then); `into` holds anything."""
        name = BlockName.of(fingerprint, key)
        target = memoryview(into).cast("B")
        try:
            is_hit = self._read(name, self._files.path_of(name), target)
        except OSError:
            is_hit = False
        self._count("hits" if is_hit else "misses")
        return is_hit

    def put(
        self, fingerprint: str, key: bytes, data: Buffer, *, ttl_s: float | None = None
    ) -> bool:
        """Keep the block, for at most ttl_s if given. False: it was not kept; never raises for
        storage."""
        name = BlockName.of(fingerprint, key)
        payload = memoryview(data).cast("B")
        if self._is_kept_already(name, payload.nbytes, ttl_s):
            self._count("duplicates")
            return True
        is_kept = self._write(name, payload, ttl_s)
        self._count("puts" if is_kept else "put_failures")
        return is_kept

    def has(self, fingerprint: str, key: bytes) -> bool:
        """Whether a record with a good header is there; only `get` verifies the payload."""
        name = BlockName.of(fingerprint, key)
        header = self._peek(name)
        return header is not None and header.expires_unix_s > self._clock.now_unix_s()

    def delete(self, fingerprint: str, key: bytes) -> bool:
        """Forget the block. False: it was not there."""
        name = BlockName.of(fingerprint, key)
        path = self._files.path_of(name)
        try:
            stat = path.stat()
        except OSError:
            return False
        return self._remove(name, path, stat)

    def maintain(self) -> None:
        """Recount one shard and delete its expired blocks; `put` does this now and then, an idle
        process may call it every few seconds."""
        self._count("expired", self._evictor.maintain_next())

    def stats(self) -> StoreStats:
        with self._counts_lock:
            counts = dict(self._counts)
        counted = {
            field.name: counts.get(field.name, 0) for field in dataclasses.fields(StoreStats)
        }
        return StoreStats(
            **{
                **counted,
                "num_bytes": self._usage.num_bytes,
                "num_blocks": self._usage.num_blocks,
                "capacity_bytes": self._capacity_bytes,
            }
        )

    def close(self) -> None:
        self._usage.close()

    def _read(self, name: BlockName, path: Path, target: memoryview) -> bool:
        fd = self._files.open_record(path)
        try:
            stat = os.fstat(fd)
            header = _read_verified(fd, stat, name, target)
            if header.expires_unix_s <= self._clock.now_unix_s():
                self._count("expired", int(self._remove(name, path, stat)))
                return False
            self._touch(fd, stat, header)
            return True
        except BadRecord:
            self._count("corrupt")
            self._remove(name, path, stat)
            return False
        finally:
            os.close(fd)

    def _touch(self, fd: int, stat: os.stat_result, header: RecordHeader) -> None:
        now_unix_s = self._clock.now_unix_s()
        if now_unix_s - stat.st_mtime > _TOUCH_INTERVAL_S:
            os.utime(fd, ns=(_to_ns(header.expires_unix_s), _to_ns(now_unix_s)))

    def _peek(self, name: BlockName) -> RecordHeader | None:
        try:
            return parse_header(self._files.read_header(self._files.path_of(name)), name)
        except (OSError, BadRecord):
            return None

    def _is_kept_already(self, name: BlockName, num_bytes: int, ttl_s: float | None) -> bool:
        header = self._peek(name)
        if header is None or header.num_payload_bytes != num_bytes:
            return False
        wanted_unix_s = NEVER_UNIX_S if ttl_s is None else self._clock.now_unix_s() + ttl_s / 2
        return header.expires_unix_s >= wanted_unix_s

    def _write(self, name: BlockName, payload: memoryview, ttl_s: float | None) -> bool:
        size_bytes = HEADER_BYTES + payload.nbytes
        if not self._make_room(size_bytes):
            return False
        now_unix_s = self._clock.now_unix_s()
        expires_unix_s = NEVER_UNIX_S if ttl_s is None else now_unix_s + ttl_s
        header = pack_header(name, payload, now_unix_s=now_unix_s, expires_unix_s=expires_unix_s)
        times_ns = (_to_ns(expires_unix_s), _to_ns(now_unix_s))
        replaced_bytes = self._stored_bytes(name)
        if not self._write_with_retry(name, header, payload, times_ns):
            return False
        self._usage.add(name.shard, size_bytes - replaced_bytes, 0 if replaced_bytes else 1)
        return True

    def _write_with_retry(
        self, name: BlockName, header: bytes, payload: memoryview, times_ns: tuple[int, int]
    ) -> bool:
        """Write; on a full disk make room once and try again."""
        for is_last_try in (False, True):
            try:
                self._files.write_record(name, header, payload, times_ns)
                return True
            except OSError as error:
                if is_last_try or error.errno not in _FULL:
                    return False
                self._evict(HEADER_BYTES + payload.nbytes)
        return False

    def _make_room(self, size_bytes: int) -> bool:
        with self._counts_lock:
            is_due = self._counts["puts"] % _PUTS_PER_MAINTENANCE == _PUTS_PER_MAINTENANCE - 1
        if is_due:
            self.maintain()
        excess = self._usage.num_bytes + size_bytes - self._capacity_bytes
        if excess <= 0:
            return True
        if size_bytes > self._capacity_bytes:
            return False
        self._evict(excess)
        return self._usage.num_bytes + size_bytes <= self._capacity_bytes

    def _evict(self, num_bytes: int) -> None:
        slack_bytes = self._capacity_bytes // 50
        evicted, expired = self._evictor.free(num_bytes, slack_bytes)
        self._count("evicted", evicted)
        self._count("expired", expired)

    def _stored_bytes(self, name: BlockName) -> int:
        try:
            return self._files.path_of(name).stat().st_size
        except OSError:
            return 0

    def _remove(self, name: BlockName, path: Path, stat: os.stat_result) -> bool:
        if not unlink_if_same(path, stat):
            return False
        self._usage.add(name.shard, -stat.st_size, -1)
        return True

    def _count(self, what: str, number: int = 1) -> None:
        with self._counts_lock:
            self._counts[what] += number


def _read_verified(
    fd: int, stat: os.stat_result, name: BlockName, target: memoryview
) -> RecordHeader:
    """Read a record into target. Raises: BadRecord when anything about it is wrong."""
    raw = bytearray(HEADER_BYTES)
    is_whole = read_all(fd, raw, target)
    header = parse_header(raw, name)
    if not is_whole or header.num_payload_bytes != target.nbytes:
        raise BadRecord("wrong length")
    if stat.st_size != HEADER_BYTES + target.nbytes:
        raise BadRecord("wrong file size")
    header.verify_payload(target)
    return header


def _to_ns(unix_s: float) -> int:
    return int(unix_s * 1e9)
