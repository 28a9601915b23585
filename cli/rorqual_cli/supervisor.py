"""Starts a crashed process again, a bounded number of times a minute."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from rorqual_cli.processes import ManagedProcess

MAX_RESTARTS = 3
WINDOW_S = 60.0
_PAUSE_S = 0.2

Say = Callable[[str], None]


class RestartBudget:
    """At most `max_restarts` in any `window_s`."""

    def __init__(self, max_restarts: int = MAX_RESTARTS, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._restarts_s: deque[float] = deque(maxlen=max_restarts)

    def wait_s(self, now_s: float) -> float:
        """Seconds until another restart is allowed; 0 = now."""
        if len(self._restarts_s) < (self._restarts_s.maxlen or 0):
            return 0.0
        return max(0.0, self._restarts_s[0] + self._window_s - now_s)

    def spend(self, now_s: float) -> None:
        """Note one restart."""
        self._restarts_s.append(now_s)


async def supervise(
    process: ManagedProcess,
    say: Say,
    on_change: Callable[[], None],
    *,
    budget: RestartBudget | None = None,
) -> None:
    """Keep a process running until this is cancelled or it ends with exit code 0, which is how it
    ends when somebody asked it to.

    on_change: called after each restart and at the end: the pid is another one.
    """
    budget = budget or RestartBudget()
    name = process.spec.name
    while True:
        code = await process.wait()
        if code == 0:
            say(f"{name} has stopped as it was asked to")
            on_change()
            return
        reason = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        wait_s = budget.wait_s(time.monotonic())
        if wait_s > 0:
            say(f"{name} crashed ({reason}) too often; next start in {wait_s:.0f} s")
        else:
            say(f"{name} crashed ({reason}), starting it again; log: {process.spec.log_path}")
        await asyncio.sleep(max(wait_s, _PAUSE_S))
        budget.spend(time.monotonic())
        try:
            await process.start()
        except OSError as err:  # no memory, no file handles: the budget spaces the tries
            say(f"{name} can't be started: {err}")
        on_change()
