"""Redis may die, hang, lose its data and come back: matches go on, nothing stays unknown."""

from redis.asyncio import Redis
from rorqual_policy import block_keys

from tests.support.waiting import until

from .conftest import running_kvmeta

KEYS = block_keys(range(4 * 128), fingerprint="model", namespace="n")


def matched(client, num_blocks):
    async def holds():
        return (await client.match(KEYS)).num_matched_blocks == num_blocks

    return until(holds)


async def in_redis(url):
    async with Redis.from_url(url) as redis:
        names = [name async for name in redis.scan_iter(match="rorqual:v2:blocks:*")]
        return sum([await redis.hlen(name) for name in names])


async def test_matches_go_on_from_the_index_while_redis_is_dead(
    runtime_settings, redis_server, client
):
    async with running_kvmeta(runtime_settings, redis_server.url):
        await client.register(KEYS[:3])
        await redis_server.kill()
        for _ in range(5):
            match = await client.match(KEYS)
            assert (match.num_matched_blocks, match.miss_reason) == (3, "never_stored")


async def test_registrations_meanwhile_arrive_after_the_restart(
    runtime_settings, redis_server, client
):
    async with running_kvmeta(runtime_settings, redis_server.url) as kvmeta:
        await redis_server.kill()
        assert await client.register(KEYS) == 0
        assert len(kvmeta.mirror.pending) == 4
        assert (await client.match(KEYS)).num_matched_blocks == 4
        await redis_server.start()
        await until(lambda: not len(kvmeta.mirror.pending))
        assert await in_redis(redis_server.url) == 4
        await matched(client, 4)


async def test_a_redis_that_lost_its_data_gets_it_back(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url) as kvmeta:
        await client.register(KEYS)
        await redis_server.kill()
        await until(lambda: not kvmeta.link_is_up)
        await redis_server.start()

        async def is_restored():
            return await in_redis(redis_server.url) == 4

        await until(is_restored)
        await matched(client, 4)


async def test_a_hanging_redis_holds_nobody_up(runtime_settings, redis_server, client):
    endless = {"redis_timeout_s": 600.0, "redis_write_timeout_s": 600.0}
    async with running_kvmeta(runtime_settings, redis_server.url, **endless):
        await client.register(KEYS)
        redis_server.pause()
        assert (await client.match(KEYS)).num_matched_blocks == 4
        assert (await client.match(KEYS)).num_matched_blocks == 4
        redis_server.resume()
        await matched(client, 4)


async def test_a_redis_that_was_only_slow_is_not_read_anew(runtime_settings, redis_server, client):
    slow = {"redis_timeout_s": 0.5, "redis_write_timeout_s": 0.5, "tend_interval_s": 0.05}
    async with running_kvmeta(runtime_settings, redis_server.url, **slow) as kvmeta:
        await client.register(KEYS)
        await until(lambda: kvmeta.mirror.is_loaded and kvmeta.link_is_up)
        num_resyncs = kvmeta.mirror.num_resyncs
        redis_server.pause()
        await until(lambda: not kvmeta.link_is_up)
        assert await client.register(KEYS) == 0
        redis_server.resume()
        await until(lambda: kvmeta.link_is_up and not len(kvmeta.mirror.pending))
        assert kvmeta.mirror.num_resyncs == num_resyncs
        assert (await client.match(KEYS)).num_matched_blocks == 4


async def test_starts_without_redis_and_loads_when_it_comes(runtime_settings, redis_server, client):
    await redis_server.kill()
    async with running_kvmeta(runtime_settings, redis_server.url) as kvmeta:
        assert (await client.match(KEYS)).miss_reason == "unavailable"
        await redis_server.start()
        await client.register(KEYS)
        await matched(client, 4)
        await until(lambda: kvmeta.mirror.is_loaded)
