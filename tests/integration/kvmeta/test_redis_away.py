"""Redis may die, hang and come back: a match never waits for it, a registration is made up for."""

import asyncio
import time

from rorqual_policy import block_keys

from .conftest import running_kvmeta

KEYS = block_keys(range(4 * 128), fingerprint="model", namespace="n")


async def eventually_matched(client, num_blocks, timeout_s=5.0):
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        if (await client.match(KEYS)).num_matched_blocks == num_blocks:
            return True
        await asyncio.sleep(0.05)
    return False


async def test_a_dead_redis_means_no_match_at_once(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        await client.register(KEYS)
        await redis_server.kill()
        for _ in range(5):
            started = time.monotonic()
            match = await client.match(KEYS)
            assert (match.num_matched_blocks, match.miss_reason) == (0, "unavailable")
            assert time.monotonic() - started < 1.0


async def test_registrations_meanwhile_arrive_after_the_restart(
    runtime_settings, redis_server, client
):
    async with running_kvmeta(runtime_settings, redis_server.url) as kvmeta:
        await redis_server.kill()
        assert await client.register(KEYS) == 0
        assert len(kvmeta.pending) == 4
        await redis_server.start()
        assert await eventually_matched(client, 4)
        assert len(kvmeta.pending) == 0


async def test_a_hanging_redis_is_given_up_and_taken_back(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        await client.register(KEYS)
        redis_server.pause()
        started = time.monotonic()
        assert (await client.match(KEYS)).num_matched_blocks == 0
        assert (await client.match(KEYS)).num_matched_blocks == 0
        assert time.monotonic() - started < 1.5
        redis_server.resume()
        assert await eventually_matched(client, 4)


async def test_starts_without_redis(runtime_settings, redis_server, client):
    await redis_server.kill()
    async with running_kvmeta(runtime_settings, redis_server.url):
        assert (await client.match(KEYS)).miss_reason == "unavailable"
        await redis_server.start()
        await client.register(KEYS)
        assert await eventually_matched(client, 4)
