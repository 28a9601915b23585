"""An end on request: computing is dropped at once, what changes the run's state is finished."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator


class Stopped(Exception):
    """Raised inside what can be dropped."""


class StopSignal:
    """SIGTERM or SIGINT, remembered from when it is made; for the main thread."""

    def __init__(self) -> None:
        self.is_set = False
        self._can_drop = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    @contextlib.contextmanager
    def droppable(self) -> Iterator[None]:
        """The block may end in Stopped, at any place in it."""
        self._can_drop = True
        try:
            if self.is_set:
                raise Stopped
            yield
        finally:
            self._can_drop = False

    def _on_signal(self, number: int, frame: object) -> None:
        self.is_set = True
        with contextlib.suppress(OSError):  # patient until now, in a hurry from here on
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        if self._can_drop:
            self._can_drop = False
            raise Stopped
