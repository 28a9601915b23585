"""Fixtures for all tests: each test that asks for a server gets its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from rorqual_engine.device import configure_threads

# Before anything loads torch; of several processes each has a core for itself.
configure_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else None)

import pytest  # noqa: E402
import pytest_asyncio  # noqa: E402
from hypothesis import settings  # noqa: E402
from rorqual_runtime.settings import RuntimeSettings  # noqa: E402

from tests.support import servers  # noqa: E402

settings.register_profile("untimed", settings(), deadline=None)  # machines differ
settings.load_profile("untimed")


@pytest_asyncio.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[servers.NatsServer]:
    """A fresh NATS server with JetStream; `.url`, `.kill()`, `.restart()`."""
    async with servers.nats_server(tmp_path) as server:
        yield server


@pytest_asyncio.fixture
async def redis_server(tmp_path: Path) -> AsyncIterator[servers.RedisServer]:
    """A fresh Redis server; `.url`, `.kill()`, `.restart()`."""
    async with servers.redis_server(tmp_path) as server:
        yield server


@pytest.fixture
def runtime_settings(nats_server: servers.NatsServer, tmp_path: Path) -> RuntimeSettings:
    """Settings of a process that uses this test's broker and keeps its files in tmp_path."""
    return RuntimeSettings(nats_url=nats_server.url, home=tmp_path / "home", shm_bytes=8 << 20)
