"""Responses in a real Redis: kept, expired, gone with the server, back with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from rorqual_recipe.response_store import RedisResponseStore, StoredResponse, StoredTooLarge
from rorqual_runtime.clock import WallClock
from rorqual_runtime.errors import Unavailable

from tests.support.servers import RedisServer, redis_server
from tests.support.waiting import WAIT_S, soon, until

STORED = StoredResponse({"id": "resp_a", "text": "naïve \ud83d"}, [{"id": "i"}], 0, 1)


@pytest_asyncio.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with redis_server(tmp_path) as server:
        yield server


def open_store(url: str, **facts: float) -> RedisResponseStore:
    chosen = {
        "ttl_s": 60.0,
        "max_bytes": 1 << 20,
        "timeout_s": WAIT_S,
        "max_connections": 4,
        **facts,
    }
    return RedisResponseStore(url, clock=WallClock(), **chosen)  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def store(redis: RedisServer) -> AsyncIterator[RedisResponseStore]:
    opened = open_store(redis.url)
    yield opened
    await opened.aclose()


async def test_a_response_is_kept_for_its_tenant_until_it_is_deleted(
    store: RedisResponseStore,
) -> None:
    await store.put("t", "resp_a", STORED)
    assert await store.get("t", "resp_a") == STORED
    assert await store.get("u", "resp_a") is None
    assert await store.delete("u", "resp_a") is False
    assert await store.delete("t", "resp_a") is True
    assert await store.get("t", "resp_a") is None


async def test_a_response_expires(redis: RedisServer) -> None:
    store = open_store(redis.url, ttl_s=0.2)
    await store.put("t", "resp_a", STORED)

    async def is_gone() -> bool:
        return await store.get("t", "resp_a") is None

    await until(is_gone)
    await store.aclose()


async def test_every_record_has_a_time_to_live_and_is_small(
    store: RedisResponseStore, redis: RedisServer
) -> None:
    large = StoredResponse({"id": "a", "text": "whale " * 50_000}, [], 0, 0)
    await store.put("t", "a", large)
    assert await store.get("t", "a") == large
    async with Redis.from_url(redis.url) as client:
        (name,) = await client.keys("rorqual:v1:recipe:response:*")
        assert 0 < await client.pttl(name) <= 60_000
        assert await client.strlen(name) < 50_000


async def test_what_is_too_large_is_refused(redis: RedisServer) -> None:
    store = open_store(redis.url, max_bytes=100)
    with pytest.raises(StoredTooLarge):
        await store.put("t", "a", StoredResponse({"text": "x" * 200}, [], 0, 0))
    await store.aclose()


async def test_the_first_secret_is_everybodys(
    store: RedisResponseStore, redis: RedisServer
) -> None:
    other = open_store(redis.url)
    assert await store.shared_secret(b"first") == b"first"
    assert await other.shared_secret(b"second") == b"first"
    await other.aclose()


async def test_a_dead_server_is_not_waited_for_twice(redis: RedisServer) -> None:
    store = open_store(redis.url, timeout_s=2.0)
    await store.put("t", "resp_a", STORED)
    redis.pause()

    async def ask() -> None:
        with pytest.raises(Unavailable):
            await store.get("t", "resp_a")

    await soon(ask())
    assert store.is_away
    for _ in range(20):  # 20 waits are 40 s
        await soon(ask())
    redis.resume()
    await until(lambda: not store.is_away)
    assert await store.get("t", "resp_a") == STORED
    await store.aclose()
