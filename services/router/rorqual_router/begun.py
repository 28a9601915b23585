"""How often each job was begun by a prefill instance: only that counts against its tries."""

MAX_JOBS = 65_536
"""Remembered at a time; a job that comes back does so within seconds."""


class BegunJobs:
    """What this router gave away and may get back; the oldest are forgotten."""

    def __init__(self, max_jobs: int = MAX_JOBS) -> None:
        self._max_jobs = max_jobs
        self._num: dict[tuple[str, int], int] = {}

    def num(self, job_id: str, stream_seq: int) -> int:
        """Instances that took it from here."""
        return self._num.get((job_id, stream_seq), 0)

    def note(self, job_id: str, stream_seq: int) -> None:
        """One more takes it."""
        key = job_id, stream_seq
        self._num[key] = self._num.pop(key, 0) + 1
        while len(self._num) > self._max_jobs:
            del self._num[next(iter(self._num))]

    def take_back(self, job_id: str, stream_seq: int) -> None:
        """One that took it gave it back untried."""
        if num := self._num.pop((job_id, stream_seq), 0):
            self._num[job_id, stream_seq] = num - 1
