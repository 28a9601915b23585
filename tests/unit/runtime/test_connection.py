"""The connection to the broker, without one."""

from __future__ import annotations

import logging

import nats.errors
import pytest
from rorqual_runtime.connection import BrokerConnection


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
