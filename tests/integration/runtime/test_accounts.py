"""API keys and quotas on a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from rorqual_runtime.accounts.keys import ApiKey, KeyLimits, KeyStore, Scope, new_secret
from rorqual_runtime.accounts.quotas import Quotas

from tests.support.servers import RedisServer

FAR_S = 3600.0


@pytest_asyncio.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_server.url)
    yield client
    await client.aclose()


def a_key(key_id: str = "k1", **fields: object) -> ApiKey:
    return ApiKey(
        id=key_id,
        name="Ada",
        tenant="team",
        scopes=frozenset({Scope.INFERENCE}),
        created_unix_s=1.0,
        **fields,  # type: ignore[arg-type]
    )


async def test_a_key_is_found_by_its_secret_only_and_the_secret_is_stored_nowhere(
    redis: Redis,
) -> None:
    store, secret = KeyStore(redis), new_secret("k1")
    await store.add(a_key(), secret)
    assert await store.find(secret) == a_key()
    assert await store.find(secret[:-1]) is None
    assert await store.find("k1") is None
    for name in await redis.keys("*"):
        dump = str(await redis.hgetall(name))
        assert secret not in dump and secret.rsplit("-", 1)[1] not in dump
    assert await store.revoke("k1") == 1
    assert await store.find(secret) is None
    assert await store.revoke("k1") == 0


async def test_a_damaged_record_opens_nothing_and_hides_no_other(redis: Redis) -> None:
    store, secret, other = KeyStore(redis), new_secret("k1"), new_secret("k2")
    await store.add(a_key(), secret)
    table = (await redis.keys("*"))[0]
    digest = (await redis.hkeys(table))[0]
    await redis.hset(table, digest, '{"id": "k1", "scopes": ["everything"]}')
    await store.add(a_key("k2"), other)
    assert await store.find(secret) is None
    assert [key.id for key in await store.all()] == ["k2"]


async def test_requests_run_out_and_come_back_steadily(redis: Redis) -> None:
    quotas, limits = Quotas(redis), KeyLimits(requests_per_minute=60)
    for number in range(60):
        state = await quotas.take("k", limits, f"r{number}", lease_s=FAR_S)
        assert not state.refused_by
    refused = await quotas.take("k", limits, "r60", lease_s=FAR_S)
    while not refused.refused_by:  # a slow machine: requests came back while others were taken
        refused = await quotas.take("k", limits, "more", lease_s=FAR_S)
    assert refused.refused_by == "requests_per_minute"
    assert 0 < refused.retry_after_s <= 1.0
    assert refused.requests is not None and refused.requests.remaining == 0
    await _age(redis, "{quota:k}:requests", 10.0)
    state = await quotas.take("k", limits, "later", lease_s=FAR_S)
    assert not state.refused_by and state.requests is not None
    assert 9 <= state.requests.remaining <= 50
    other = await quotas.take("another key", limits, "r", lease_s=FAR_S)
    assert other.requests is not None and other.requests.remaining == 59


async def test_tokens_are_taken_at_the_end_and_a_debt_is_waited_for(redis: Redis) -> None:
    quotas, limits = Quotas(redis), KeyLimits(tokens_per_minute=600)
    assert not (await quotas.take("k", limits, "a", lease_s=FAR_S)).refused_by
    await quotas.settle("k", limits, "a", num_tokens=1200)
    refused = await quotas.take("k", limits, "b", lease_s=FAR_S)
    assert refused.refused_by == "tokens_per_minute"
    assert 30 < refused.retry_after_s <= 61
    assert refused.tokens is not None and refused.tokens.remaining == 0
    await _age(redis, "{quota:k}:tokens", 61.0)
    assert not (await quotas.take("k", limits, "c", lease_s=FAR_S)).refused_by


async def test_a_refused_request_uses_nothing_up(redis: Redis) -> None:
    quotas, limits = Quotas(redis), KeyLimits(requests_per_minute=10, max_concurrent=1)
    assert not (await quotas.take("k", limits, "a", lease_s=FAR_S)).refused_by
    for _ in range(5):
        refused = await quotas.take("k", limits, "b", lease_s=FAR_S)
        assert refused.refused_by == "max_concurrent"
    assert refused.requests is not None and refused.requests.remaining == 9
    await quotas.settle("k", limits, "a", num_tokens=0)
    assert not (await quotas.take("k", limits, "b", lease_s=FAR_S)).refused_by


async def test_what_a_dead_gateway_left_under_way_ends_with_its_lease(redis: Redis) -> None:
    quotas, limits = Quotas(redis), KeyLimits(max_concurrent=1)
    assert not (await quotas.take("k", limits, "lost", lease_s=-1.0)).refused_by
    assert not (await quotas.take("k", limits, "next", lease_s=FAR_S)).refused_by


async def test_counts_of_a_key_that_is_not_used_go_away(redis: Redis) -> None:
    quotas = Quotas(redis)
    limits = KeyLimits(requests_per_minute=5, tokens_per_minute=5, max_concurrent=5)
    await quotas.take("k", limits, "a", lease_s=FAR_S)
    await quotas.settle("k", limits, "a", num_tokens=3)
    for name in await redis.keys("*quota*"):
        assert await redis.ttl(name) > 0


@pytest.mark.parametrize("field", ["requests_per_minute", "tokens_per_minute", "max_concurrent"])
def test_a_limit_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        KeyLimits(**{field: 0})


async def _age(redis: Redis, ending: str, seconds: float) -> None:
    """Make a bucket look as if it had been left alone for so long."""
    name = next(name for name in await redis.keys("*") if name.decode().endswith(ending))
    at = float(await redis.hget(name, "at"))
    await redis.hset(name, "at", at - seconds)
