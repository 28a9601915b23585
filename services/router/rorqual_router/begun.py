"""How often each job was begun by a prefill instance: only that counts against its tries."""

from rorqual_runtime.leases import LeasedJob

MAX_JOBS = 65_536
"""Remembered at a time; a job that comes back does so within seconds."""


class BegunJobs:
    """What this router gave away and may get back; the oldest are forgotten."""

    def __init__(self, max_jobs: int = MAX_JOBS) -> None:
        self._max_jobs = max_jobs
        self._num: dict[tuple[str, int], int] = {}

    def num(self, job_id: str, leased: LeasedJob) -> int:
        """Instances that took it from here."""
        return self._num.get((job_id, leased.stream_seq), 0)

    def note(self, job_id: str, leased: LeasedJob) -> None:
        """One more takes it."""
        key = job_id, leased.stream_seq
        self._num[key] = self._num.pop(key, 0) + 1
        while len(self._num) > self._max_jobs:
            del self._num[next(iter(self._num))]
