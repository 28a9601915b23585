"""Leases end by release or by themselves, and spare their blocks from whoever cleans up."""

import numpy as np
from redis.asyncio import Redis
from rorqual_kvmeta.leases import LEASES_NAME, Leases
from rorqual_policy import block_keys
from rorqual_runtime.clock import ManualClock

from tests.support.waiting import until

from .conftest import running_kvmeta

KEYS = block_keys(range(3 * 128), fingerprint="model", namespace="n")


async def num_leases(url):
    async with Redis.from_url(url) as redis:
        return await redis.zcard(LEASES_NAME)


def leases_are(url, count):
    async def holds():
        return await num_leases(url) == count

    return until(holds)


async def test_a_match_holds_a_lease_until_released(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        assert (await client.match(KEYS)).lease_id == ""
        await client.register(KEYS)
        first, second = await client.match(KEYS), await client.match(KEYS)
        assert first.lease_id != second.lease_id
        await leases_are(redis_server.url, 2)
        await client.release(first.lease_id)
        await client.release("unknown")
        await leases_are(redis_server.url, 1)


async def test_a_lease_that_is_released_before_it_is_known_never_is(redis_server):
    leases = Leases(20.0, ManualClock())
    keys = np.zeros((3, 2), np.uint64)
    async with Redis.from_url(redis_server.url) as redis:
        late, kept = leases.new(), leases.new()
        assert not await leases.release(redis, late.lease_id)
        await leases.add(redis, late, keys)
        await leases.add(redis, kept, keys)
        assert await redis.zrange(LEASES_NAME, 0, -1) == [kept.lease_id.encode()]
        assert await leases.release(redis, kept.lease_id)
    assert await num_leases(redis_server.url) == 0


async def test_a_lease_is_called_as_its_asker_wants(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        await client.register(KEYS)
        wanted = "0123456789abcdef"
        assert (await client.match(KEYS, lease_id=wanted)).lease_id == wanted
        assert (await client.match(KEYS, lease_id="*:of others")).lease_id != "*:of others"


async def test_a_lease_that_nobody_releases_is_swept(runtime_settings, redis_server, client):
    clock = ManualClock()
    quick = {"lease_s": 20.0, "tend_interval_s": 0.1}
    async with running_kvmeta(runtime_settings, redis_server.url, clock=clock, **quick):
        await client.register(KEYS)
        await client.match(KEYS)
        await leases_are(redis_server.url, 1)
        await clock.advance(30)
        await leases_are(redis_server.url, 0)


async def test_leased_blocks_are_spared_by_another_instance(runtime_settings, redis_server, client):
    limits = {"quota_bytes": 2 << 20, "tend_interval_s": 0.1}
    others = block_keys(range(128), fingerprint="model", namespace="m")
    async with running_kvmeta(runtime_settings, redis_server.url) as plain:
        await client.register(KEYS[:1], tenant="t")
        lease = await client.match(KEYS[:1])
        await leases_are(redis_server.url, 1)
        await client.register([*KEYS[1:], *others], tenant="t")
        async with running_kvmeta(runtime_settings, redis_server.url, **limits) as strict:
            await until(lambda: strict.index.num_live < 4 and plain.index.num_live < 4)
            assert (await client.match(KEYS)).num_matched_blocks >= 1
            await client.release(lease.lease_id)
