"""The processes that a leading model's experts are shared with."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from rorqual_engine.expert_worker import WorkerJob
from rorqual_engine.parallel import GroupLost

OnLost = Callable[[GroupLost], None]
_CLOSE_S = 3.0


class ExpertWorkers:
    """The processes of ranks 1 and up. They end with this object or with this process."""

    def __init__(self, job: WorkerJob, devices: Sequence[str], on_lost: OnLost) -> None:
        """job: what every worker is told, but for its rank and device; devices: by rank."""
        self._size, self._on_lost = job.size, on_lost
        self._changed = threading.Condition()
        self._num_ready = 0
        self._is_closing = False
        self._fault: GroupLost | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, job.size):
            process = _start(replace(job, rank=rank, device=devices[rank]))
            self._processes.append(process)
            watch = threading.Thread(
                target=self._watch, args=(rank, process), name=f"expert-rank-{rank}", daemon=True
            )
            watch.start()

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Until every worker has loaded. Raises: GroupLost."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or self._fault, timeout_s)
            if self._fault is None and not self._is_ready:
                self._fault = self.lost(f"not every rank had loaded after {timeout_s:.0f} s")
            if self._fault is not None:
                raise self._fault

    @property
    def _is_ready(self) -> bool:
        return self._num_ready == self._size - 1

    def tell(self, message: bytes) -> None:
        """Wakes the workers. message: `STEP` or a `move_message`. Raises: GroupLost."""
        if self._fault is not None:
            raise self._fault
        for rank, process in enumerate(self._processes, 1):
            assert process.stdin is not None
            try:
                process.stdin.write(message)
            except OSError as err:
                raise self.lost(f"rank {rank} has ended") from err

    def lost(self, reason: str) -> GroupLost:
        return GroupLost(0, self._size, "a step", 0.0, reason)

    def lose(self, lost: GroupLost) -> None:
        """The group is over; the first reason is told."""
        with self._changed:
            if self._fault is not None or self._is_closing:
                return
            self._fault = lost
            self._changed.notify_all()
        self._on_lost(lost)

    def close(self) -> None:
        """Ends the workers; one that is in a step gets little time for it."""
        with self._changed:
            self._is_closing = True
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            if said.readline():
                with self._changed:
                    self._num_ready += 1
                    self._changed.notify_all()
        code = process.wait()
        reason = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        self.lose(self.lost(f"rank {rank} has ended ({reason})"))


def _start(job: WorkerJob) -> subprocess.Popen[bytes]:
    """In a session of its own: signals for this process are not for its workers."""
    return subprocess.Popen(
        [sys.executable, "-m", "rorqual_engine.expert_worker", job.to_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
