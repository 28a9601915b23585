"""What goes when the store is full, and how its counters stay true: scans of bounded cost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from rorqual_runtime.blockstore.files import BlockFiles, StoredFile
from rorqual_runtime.blockstore.record import BadRecord, BlockName, parse_header
from rorqual_runtime.blockstore.usage import NUM_SHARDS, Usage
from rorqual_runtime.clock import Clock

_SAMPLE_FILES = 4096
_MAX_EXTRA_FILES = 256
_LOCK_WAIT_S = 5.0


class Evictor:
    """Deletes expired and least recently used files.

    A pass looks at shards in turn until it has seen 4,096 files. A store of no more than that many
    blocks is evicted in the exact order of use, a larger one by the order within such a sample:
    keys are hashes, so every shard is a fair sample of the store.
    """

    def __init__(self, files: BlockFiles, usage: Usage, clock: Clock) -> None:
        self._files, self._usage, self._clock = files, usage, clock
        self._lock = threading.Lock()

    def free(self, num_bytes: int, slack_bytes: int) -> tuple[int, int]:
        """Delete files of at least num_bytes, and up to slack_bytes more so that the next call is
        not due at once. Other processes may do the same: a file counts for whoever deleted it.

        Returns (evicted, expired) files.
        """
        if not self._lock.acquire(timeout=_LOCK_WAIT_S):
            return 0, 0
        try:
            return self._free(num_bytes, slack_bytes)
        finally:
            self._lock.release()

    def maintain_next(self) -> int:
        """Recount the next shard and delete its expired files. Returns how many."""
        return sum(self._delete(f) for f in self._scan(self._usage.next_shard()) if self._is_due(f))

    def recount(self, *, everything: bool) -> None:
        """Correct the counters of all shards, or of a bounded number of files."""
        for _ in self._samples():
            if not everything:
                return
        self._usage.mark_counted()

    def _free(self, num_bytes: int, slack_bytes: int) -> tuple[int, int]:
        evicted = expired = freed = 0
        for sample in self._samples():
            num_expired, bytes_expired, rest = self._drop_due(sample)
            wanted = num_bytes - freed - bytes_expired
            num_evicted, bytes_evicted = self._drop_oldest(rest, wanted, slack_bytes)
            expired += num_expired
            evicted += num_evicted
            freed += bytes_expired + bytes_evicted
            if freed >= num_bytes:
                break
        return evicted, expired

    def _samples(self) -> Iterator[list[StoredFile]]:
        """All files of the store, whole shards at a time, in samples of a bounded size."""
        first = self._usage.next_shard()
        sample: list[StoredFile] = []
        for step in range(NUM_SHARDS):
            shard = (first + step) % NUM_SHARDS
            sample += self._scan(shard)
            if len(sample) >= _SAMPLE_FILES:
                self._usage.go_on_after(shard)
                yield sample
                sample = []
        yield sample

    def _drop_due(self, sample: list[StoredFile]) -> tuple[int, int, list[StoredFile]]:
        """Delete what has expired. Returns (files, bytes, the files that are left)."""
        due = [file for file in sample if self._is_due(file)]
        gone = [file for file in due if self._delete(file)]
        paths = {file.path for file in due}
        rest = [file for file in sample if file.path not in paths] if due else sample
        return len(gone), sum(file.num_bytes for file in gone), rest

    def _drop_oldest(
        self, sample: list[StoredFile], num_bytes: int, slack_bytes: int
    ) -> tuple[int, int]:
        """Delete by oldest use. Returns (files, bytes)."""
        num_deleted = freed = num_extra = 0
        for file in sorted(sample, key=lambda f: (f.used_ns, f.path)):
            if freed >= num_bytes:
                num_extra += 1
            if freed >= num_bytes + slack_bytes or num_extra > _MAX_EXTRA_FILES:
                break
            if self._delete(file):
                num_deleted += 1
                freed += file.num_bytes
        return num_deleted, freed

    def _scan(self, shard: int) -> list[StoredFile]:
        before = self._usage.of_shard(shard)
        try:
            files = list(self._files.scan(shard))
        except OSError:
            return []
        self._usage.correct(shard, before, (sum(f.num_bytes for f in files), len(files)))
        return files

    def _is_due(self, file: StoredFile) -> bool:
        """Whether the file has expired or is no record: the header decides, the hint saves most
        files from being opened."""
        now_unix_s = self._clock.now_unix_s()
        if file.expires_ns > now_unix_s * 1e9:
            return False
        try:
            name = BlockName.of_file(file.path.name)
            header = parse_header(self._files.read_header(file.path), name)
        except OSError:
            return False
        except BadRecord:
            return True
        return header.expires_unix_s <= now_unix_s

    def _delete(self, file: StoredFile) -> bool:
        try:
            file.path.unlink()
        except OSError:
            return False
        self._usage.add(file.shard, -file.num_bytes, -1)
        return True
