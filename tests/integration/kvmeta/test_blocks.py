"""A match is the longest stored prefix, for as long as its blocks live."""

import pytest
from redis.asyncio import Redis
from rorqual_cli.address import BusAddress
from rorqual_cli.kv_clear import ask_to_clear
from rorqual_policy import block_keys
from rorqual_proto.v1 import kvmeta_pb2
from rorqual_proto.v1.kvmeta_pb2 import PROVENANCE_REPLAYED
from rorqual_runtime.clock import ManualClock
from rorqual_runtime.errors import InvalidRequest

from tests.support.waiting import until

from .conftest import AGENT, CHAT, running_kvmeta

KEYS = block_keys(range(6 * 128), fingerprint="model", namespace="n")


async def test_longest_prefix_and_no_more(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        assert (await client.match(KEYS)).num_matched_blocks == 0
        await client.register(KEYS[:2] + KEYS[3:])
        match = await client.match(KEYS)
        assert (match.num_matched_blocks, match.miss_reason) == (2, "never_stored")
        await client.register([KEYS[2]])
        match = await client.match(KEYS)
        assert (match.num_matched_blocks, match.miss_reason) == (6, "")
        assert (await client.match([])).num_matched_blocks == 0


async def test_models_do_not_share_blocks(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        await client.register(KEYS, fingerprint="model-a")
        assert (await client.match(KEYS, fingerprint="model-b")).num_matched_blocks == 0
        assert (await client.match(KEYS, fingerprint="model-a")).num_matched_blocks == 6


async def test_registering_again_changes_nothing(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        assert await client.register(KEYS) == 6
        assert await client.register(KEYS) == 6
        assert (await client.match(KEYS)).num_matched_blocks == 6


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("missing", "evicted"),
        ("evicted", "evicted"),
        ("corrupt", "corrupt"),
        ("expired", "expired"),
    ],
)
async def test_a_forgotten_block_ends_the_prefix_and_says_why(
    runtime_settings, redis_server, client, reason, told
):
    async with running_kvmeta(runtime_settings, redis_server.url) as kvmeta:
        await client.register(KEYS)
        await client.forget([KEYS[3]], reason=reason)
        await until(lambda: kvmeta.index.num_live == 5)
        match = await client.match(KEYS)
        assert (match.num_matched_blocks, match.miss_reason) == (3, told)
        await client.register([KEYS[3]])
        assert (await client.match(KEYS)).num_matched_blocks == 6


async def test_each_class_has_its_lifetime_and_a_use_extends_it(
    runtime_settings, redis_server, client
):
    lifetimes = {"chat_lifetime_s": 60.0, "agent_lifetime_s": 6.0}
    clock = ManualClock()
    async with running_kvmeta(runtime_settings, redis_server.url, clock=clock, **lifetimes):
        await client.register(KEYS[:1], traffic_class=CHAT)
        await client.register(KEYS[1:2], traffic_class=AGENT)
        for _ in range(4):
            await clock.advance(3)
            assert (await client.match(KEYS[:2])).num_matched_blocks == 2
        await clock.advance(7)
        match = await client.match(KEYS[:2])
        assert (match.num_matched_blocks, match.miss_reason) == (1, "expired")
        await client.register(KEYS[1:2], traffic_class=AGENT)
        assert (await client.match(KEYS[:2])).num_matched_blocks == 2


async def test_agent_traffic_does_not_shorten_a_chat_block(runtime_settings, redis_server, client):
    lifetimes = {"chat_lifetime_s": 60.0, "agent_lifetime_s": 2.0}
    clock = ManualClock()
    async with running_kvmeta(runtime_settings, redis_server.url, clock=clock, **lifetimes):
        await client.register(KEYS, traffic_class=CHAT)
        await client.register(KEYS, traffic_class=AGENT)
        await clock.advance(4)
        assert (await client.match(KEYS)).num_matched_blocks == 6


async def test_a_block_may_have_a_lifetime_of_its_own(runtime_settings, redis_server, client):
    clock = ManualClock()
    async with running_kvmeta(runtime_settings, redis_server.url, clock=clock):
        await client.register(KEYS[:1], lifetime_s=3.0)
        await client.register(KEYS[1:])
        await clock.advance(4)
        assert (await client.match(KEYS)).miss_reason == "expired"


async def test_replayed_blocks_are_told_and_can_be_left_out(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        await client.register(KEYS[:2])
        await client.register(KEYS[2:], provenance=PROVENANCE_REPLAYED)
        match = await client.match(KEYS)
        assert (match.num_matched_blocks, match.num_exact_blocks) == (6, 2)
        exact = await client.match(KEYS, exact_only=True)
        assert (exact.num_matched_blocks, exact.miss_reason) == (2, "replay_boundary")


async def test_expired_blocks_leave_redis_too(runtime_settings, redis_server, client):
    clock = ManualClock()
    quick = {"chat_lifetime_s": 10.0, "expired_memory_s": 20.0, "sweep_interval_s": 0.1}
    async with running_kvmeta(runtime_settings, redis_server.url, clock=clock, **quick) as kvmeta:
        await client.register(KEYS)
        await clock.advance(15)
        await until(lambda: kvmeta.index.num_live == 0)
        assert (await client.match(KEYS)).miss_reason == "expired"
        await clock.advance(20)
        async with Redis.from_url(redis_server.url) as redis:

            async def is_empty():
                return not [name async for name in redis.scan_iter(match="rorqual:v2:blocks:*")]

            await until(is_empty)
        assert (await client.match(KEYS)).miss_reason == "never_stored"


async def test_a_tenant_over_its_quota_loses_its_oldest_blocks(
    runtime_settings, redis_server, client
):
    limits = {"quota_bytes": 4 << 20, "tend_interval_s": 0.1, "tenant_quota_bytes": {"big": 0}}
    clock = ManualClock()
    async with running_kvmeta(runtime_settings, redis_server.url, clock=clock, **limits) as kvmeta:
        dropped = await client.drops()
        other = block_keys(range(900), fingerprint="model", namespace="other")
        await client.register(KEYS[:3], tenant="small")
        await clock.advance(5)
        await client.register(other, tenant="big")
        await client.register(KEYS[3:], tenant="small")
        await until(lambda: kvmeta.index.num_live == len(other) + 3)
        match = await client.match(KEYS)
        assert (match.num_matched_blocks, match.miss_reason) == (0, "evicted")
        await until(lambda: set(dropped) == set(KEYS[:3]))
        assert (await client.match(other)).num_matched_blocks == len(other)


async def test_a_tenant_can_be_cleared_and_so_can_everything(
    runtime_settings, redis_server, client
):
    other = block_keys(range(900), fingerprint="model", namespace="other")
    async with running_kvmeta(runtime_settings, redis_server.url):
        await client.register(KEYS, tenant="a")
        await client.register(other, tenant="b")
        dropped = await client.drops()
        assert await client.clear(tenant="a", has_tenant=True, model_fingerprint="model") == 6
        await until(lambda: set(dropped) == set(KEYS))
        assert (await client.match(KEYS)).miss_reason == "never_stored"
        assert (await client.match(other)).num_matched_blocks == 7
        everything = kvmeta_pb2.ClearBlocksRequest()
        assert await ask_to_clear(BusAddress(runtime_settings.nats_url), everything) == 7
        assert (await client.match(other)).num_matched_blocks == 0


async def test_keys_of_the_wrong_size_are_refused(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        with pytest.raises(InvalidRequest, match="16 bytes"):
            await client.match([b"short"])
        with pytest.raises(InvalidRequest, match="16 bytes"):
            await client.register([b"short"])
        with pytest.raises(InvalidRequest, match="fingerprint"):
            await client.match(KEYS, fingerprint="")
        with pytest.raises(InvalidRequest, match="lifetime_s"):
            await client.register(KEYS, lifetime_s=-1.0)
