"""Waiting for room in a full tensor arena."""

from __future__ import annotations

import asyncio

import pytest
from rorqual_runtime.errors import InvalidRequest, NoCapacity, QueueTimeout
from rorqual_runtime.kv_export import once_there_is_room


async def test_what_is_put_is_put_as_soon_as_there_is_room() -> None:
    tries: list[int] = []

    async def put() -> str:
        tries.append(len(tries))
        if len(tries) < 3:
            raise NoCapacity
        return "ticket"

    assert await once_there_is_room(put, 30.0) == "ticket"
    assert len(tries) == 3


@pytest.mark.parametrize("timeout_s", [0.0, 0.05])
async def test_an_arena_that_stays_full_is_told_and_may_be_tried_again(timeout_s: float) -> None:
    async def put() -> None:
        await asyncio.sleep(0)
        raise NoCapacity

    with pytest.raises(QueueTimeout, match="stayed full") as caught:
        await once_there_is_room(put, timeout_s)
    assert caught.value.retryable


async def test_another_failure_is_not_waited_out() -> None:
    async def put() -> None:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        await once_there_is_room(put, 30.0)
