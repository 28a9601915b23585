"""The connection to the broker, without one."""

from __future__ import annotations

import asyncio
import logging

import nats.errors
import pytest
from rorqual_runtime.connection import BrokerConnection, ended_within

from tests.support.waiting import soon


async def test_what_the_broker_client_complains_about_a_thousand_times_is_logged_once_of_each_kind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection = BrokerConnection("x")
    slow = nats.errors.SlowConsumerError("load.x", b"", 1, None)
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            await connection._note_error(slow)
            await connection._note_error(OSError("refused"))
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


async def test_what_drops_a_cancellation_is_given_up_all_the_same():
    num_dropped = 0

    async def stubborn() -> None:
        nonlocal num_dropped
        while num_dropped < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                num_dropped += 1
        await asyncio.Event().wait()

    assert not await soon(ended_within(stubborn(), 0.01))
    assert num_dropped == 3


async def test_what_ends_in_time_tells_how():
    async def fails() -> None:
        raise OSError("no route")

    assert await ended_within(asyncio.sleep(0), 5.0)
    with pytest.raises(OSError, match="no route"):
        await ended_within(fails(), 5.0)
