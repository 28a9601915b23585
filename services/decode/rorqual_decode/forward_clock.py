"""For how long forwards ran, and for how long the next one waited for the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class ForwardTimes(NamedTuple):
    """Sums since the start."""

    forward_s: float
    between_s: float
    """From a forward's end to the next one's beginning, while sequences ran: drawing tokens
    included, waiting for requests not."""

    def since(self, before: ForwardTimes) -> ForwardTimes:
        return ForwardTimes(self.forward_s - before.forward_s, self.between_s - before.between_s)


class ForwardClock:
    """One thread runs forwards, any may read. Of a device that computes behind the host's back it
    sees what the host waits for."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._now_s = now_s
        self.times = ForwardTimes(0.0, 0.0)
        self._began_s = 0.0
        self._ended_s: float | None = None

    def begin(self) -> None:
        """A forward begins."""
        self._began_s = self._now_s()

    def end(self) -> None:
        """It is there."""
        now_s = self._now_s()
        forward_s, between_s = self.times
        if self._ended_s is not None:
            between_s += self._began_s - self._ended_s
        self.times = ForwardTimes(forward_s + now_s - self._began_s, between_s)
        self._ended_s = now_s

    def rest(self) -> None:
        """Nothing runs: what comes next does not wait for the host."""
        self._ended_s = None
