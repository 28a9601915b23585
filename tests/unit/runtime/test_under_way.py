"""What is under way for a request ends with its cancellation."""

from __future__ import annotations

import asyncio

import pytest
from rorqual_runtime.cancelled import CancelledIds
from rorqual_runtime.errors import Cancelled
from rorqual_runtime.under_way import UnderWay

from tests.support.waiting import soon


async def test_a_cancel_ends_all_work_of_its_request_and_no_other() -> None:
    under_way = UnderWay(CancelledIds())
    mine = [asyncio.create_task(under_way.run("a", asyncio.sleep(60))) for _ in range(2)]
    other = asyncio.create_task(under_way.run("b", asyncio.sleep(0.05, "done")))
    await asyncio.sleep(0)
    assert len(under_way) == 3
    under_way.cancel("a")
    errors = await asyncio.gather(*mine, return_exceptions=True)
    assert [type(error) for error in errors] == [Cancelled, Cancelled]
    assert await other == "done"
    await soon(under_way.wait_idle())


async def test_work_for_a_cancelled_request_is_not_begun() -> None:
    under_way = UnderWay(CancelledIds())
    under_way.cancel("a")
    begun = False

    async def work() -> None:
        nonlocal begun
        begun = True

    with pytest.raises(Cancelled):
        await under_way.run("a", work())
    assert not begun
