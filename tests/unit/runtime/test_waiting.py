"""Work in threads is waited for, however often its caller is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest
from rorqual_runtime.waiting import uninterrupted


async def test_no_number_of_cancellations_cuts_the_wait_short() -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def work() -> None:
        may_end.wait(30)
        has_ended.set()

    waiting = asyncio.create_task(uninterrupted(asyncio.to_thread(work)))
    for _ in range(3):
        await asyncio.sleep(0.01)
        waiting.cancel()
    await asyncio.sleep(0.01)
    assert not waiting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert has_ended.is_set()


async def test_an_error_of_the_work_is_the_callers() -> None:
    def work() -> None:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        await uninterrupted(asyncio.to_thread(work))
