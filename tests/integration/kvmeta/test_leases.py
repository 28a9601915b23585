"""Leases end by release or by themselves."""

import asyncio

from redis.asyncio import Redis
from rorqual_kvmeta.leases import LEASES_NAME
from rorqual_policy import block_keys

from .conftest import running_kvmeta

KEYS = block_keys(range(128), fingerprint="model", namespace="n")


async def num_leases(url):
    async with Redis.from_url(url) as redis:
        return await redis.zcard(LEASES_NAME)


async def test_a_match_holds_a_lease_until_released(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        assert (await client.match(KEYS)).lease_id == ""
        await client.register(KEYS)
        first, second = await client.match(KEYS), await client.match(KEYS)
        await asyncio.sleep(0.05)
        assert first.lease_id != second.lease_id
        assert await num_leases(redis_server.url) == 2
        await client.release(first.lease_id)
        await client.release("unknown")
        await asyncio.sleep(0.05)
        assert await num_leases(redis_server.url) == 1


async def test_a_lease_that_nobody_releases_is_swept(runtime_settings, redis_server, client):
    quick = {"lease_s": 0.2, "sweep_interval_s": 0.1}
    async with running_kvmeta(runtime_settings, redis_server.url, **quick):
        await client.register(KEYS)
        await client.match(KEYS)
        await asyncio.sleep(0.05)
        assert await num_leases(redis_server.url) == 1
        await asyncio.sleep(0.5)
        assert await num_leases(redis_server.url) == 0
