"""Threads behind a bounded line: what is over the bound is refused, other lanes go on."""

from __future__ import annotations

import asyncio
import threading

import pytest
from rorqual_recipe.lanes import WorkLane
from rorqual_runtime.errors import NoCapacity


async def test_a_full_lane_refuses_and_disturbs_no_other() -> None:
    slow, other = (WorkLane(name, num_threads=1, max_waiting=2) for name in ("pages", "lines"))
    go_on = threading.Event()
    waiting = [asyncio.create_task(slow.run(lambda: go_on.wait(10))) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(NoCapacity, match="too many pages"):
        await slow.run(lambda: None)
    assert await other.run(lambda: "read") == "read"
    go_on.set()
    assert await asyncio.gather(*waiting) == [True, True]
    assert await slow.run(lambda: "read") == "read"


async def test_what_fails_or_is_given_up_leaves_its_place() -> None:
    lane = WorkLane("pages", num_threads=1, max_waiting=1)
    with pytest.raises(ZeroDivisionError):
        await lane.run(lambda: 1 // 0)
    go_on = threading.Event()
    given_up = asyncio.create_task(lane.run(lambda: go_on.wait(10)))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    following = asyncio.create_task(lane.run(lambda: "read"))
    go_on.set()
    assert await following == "read"
