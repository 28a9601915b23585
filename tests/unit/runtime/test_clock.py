"""The manual clock wakes sleepers in order."""

from __future__ import annotations

import asyncio

from rorqual_runtime.clock import ManualClock


async def test_manual_clock_wakes_in_order() -> None:
    clock, woken = ManualClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.monotonic_s()))

    tasks = [asyncio.create_task(sleeper(s)) for s in (3, 1, 2)]
    await asyncio.sleep(0)
    await clock.advance(2.5)
    assert woken == [(1, 1), (2, 2)]
    await clock.advance(1)
    await asyncio.gather(*tasks)
    assert woken[-1] == (3, 3)
