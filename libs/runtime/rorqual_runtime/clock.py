"""Time as an argument: services take a `Clock`, tests turn its hands."""

from __future__ import annotations

import asyncio
import heapq
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time, monotonic time and sleeping."""

    def now_unix_s(self) -> float:
        """Seconds since the epoch; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back; only differences mean something."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once `seconds` have passed on this clock."""
        ...


class WallClock:
    """The real clock."""

    def now_unix_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that moves only when a test calls `advance`."""

    def __init__(self, start_unix_s: float = 1_800_000_000.0) -> None:
        self._start_unix_s = start_unix_s
        self._elapsed_s = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._num_sleeps = 0

    def now_unix_s(self) -> float:
        return self._start_unix_s + self._elapsed_s

    def monotonic_s(self) -> float:
        return self._elapsed_s

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._num_sleeps += 1
        heapq.heappush(self._sleepers, (self._elapsed_s + seconds, self._num_sleeps, woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Move on by `seconds`, waking sleepers in the order of their wake-up time."""
        until_s = self._elapsed_s + seconds
        while self._sleepers and self._sleepers[0][0] <= until_s:
            wake_s, _, woken = heapq.heappop(self._sleepers)
            self._elapsed_s = max(self._elapsed_s, wake_s)
            if not woken.done():
                woken.set_result(None)
            await _let_others_run()
        self._elapsed_s = until_s
        await _let_others_run()


async def _let_others_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
