"""Process ids that can't be mistaken for a later process with the same number."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.02
_START_TICKS_FIELD = 19
"""Of /proc/<pid>/stat, counted after the command name."""


@dataclass(frozen=True)
class ProcessIdentity:
    """A pid together with the moment its process started."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Raises: ProcessLookupError when no such process runs."""
        ticks = _start_ticks(pid)
        if ticks is None:
            raise ProcessLookupError(pid)
        return cls(pid, ticks)

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return _start_ticks(self.pid) == self.start_ticks

    def send_signal(self, number: signal.Signals) -> bool:
        """Signal this process and no other; False when it has ended."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.is_alive:  # the handle holds the pid, so this can't change below
                return False
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
                return True
            return False
        finally:
            os.close(handle)

    def wait(self, timeout_s: float) -> bool:
        """Whether the process ended within `timeout_s`. Blocks."""
        end_s = time.monotonic() + timeout_s
        while self.is_alive:
            if time.monotonic() > end_s:
                return False
            time.sleep(_POLL_S)
        return True


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[_START_TICKS_FIELD])
