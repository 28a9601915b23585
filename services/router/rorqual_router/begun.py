"""How often each job was begun by a prefill instance: only that counts against its tries."""

from rorqual_runtime.clock import Clock

MAX_JOBS = 65_536
"""Remembered at a time."""
KEEP_S = 120.0
"""A job that comes back does so when its lease ends, within seconds."""


class BegunJobs:
    """What this router gave away lately and may get back."""

    def __init__(self, clock: Clock, *, max_jobs: int = MAX_JOBS, keep_s: float = KEEP_S) -> None:
        self._clock = clock
        self._max_jobs = max_jobs
        self._keep_s = keep_s
        # Insertion order equals order of time: a job that is begun again moves to the end.
        self._begun: dict[tuple[str, int], tuple[int, float]] = {}

    def num(self, job_id: str, stream_seq: int) -> int:
        """Instances that took it from here."""
        return self._begun.get((job_id, stream_seq), (0, 0.0))[0]

    def note(self, job_id: str, stream_seq: int) -> None:
        """One more takes it."""
        key, now_s = (job_id, stream_seq), self._clock.monotonic_s()
        self._begun[key] = self._begun.pop(key, (0, now_s))[0] + 1, now_s
        self._forget_old(now_s - self._keep_s)

    def take_back(self, job_id: str, stream_seq: int) -> None:
        """One that took it gave it back untried."""
        num, begun_s = self._begun.get((job_id, stream_seq), (0, 0.0))
        if num:
            self._begun[job_id, stream_seq] = num - 1, begun_s

    def _forget_old(self, before_s: float) -> None:
        while True:
            oldest = next(iter(self._begun))
            if len(self._begun) <= self._max_jobs and self._begun[oldest][1] >= before_s:
                return
            del self._begun[oldest]
