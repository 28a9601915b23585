"""A match is the longest stored prefix, for as long as its blocks live."""

import asyncio

import pytest
from rorqual_policy import block_keys
from rorqual_runtime.errors import InvalidRequest

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


async def test_a_forgotten_block_ends_the_prefix(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        await client.register(KEYS)
        await client.forget([KEYS[3]])
        await asyncio.sleep(0.1)
        assert (await client.match(KEYS)).num_matched_blocks == 3


async def test_each_class_has_its_lifetime_and_a_use_extends_it(
    runtime_settings, redis_server, client
):
    lifetimes = {"chat_lifetime_s": 60.0, "agent_lifetime_s": 0.6}
    async with running_kvmeta(runtime_settings, redis_server.url, **lifetimes):
        await client.register(KEYS[:1], traffic_class=CHAT)
        await client.register(KEYS[1:2], traffic_class=AGENT)
        for _ in range(4):
            await asyncio.sleep(0.3)
            assert (await client.match(KEYS[:2])).num_matched_blocks == 2
        await asyncio.sleep(0.7)
        match = await client.match(KEYS[:2])
        assert (match.num_matched_blocks, match.miss_reason) == (1, "expired")
        await client.register(KEYS[1:2], traffic_class=AGENT)
        assert (await client.match(KEYS[:2])).num_matched_blocks == 2


async def test_agent_traffic_does_not_shorten_a_chat_block(runtime_settings, redis_server, client):
    lifetimes = {"chat_lifetime_s": 60.0, "agent_lifetime_s": 0.2}
    async with running_kvmeta(runtime_settings, redis_server.url, **lifetimes):
        await client.register(KEYS, traffic_class=CHAT)
        await client.register(KEYS, traffic_class=AGENT)
        await asyncio.sleep(0.4)
        assert (await client.match(KEYS)).num_matched_blocks == 6


async def test_keys_of_the_wrong_size_are_refused(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        with pytest.raises(InvalidRequest, match="16 bytes"):
            await client.match([b"short"])
        with pytest.raises(InvalidRequest, match="fingerprint"):
            await client.match(KEYS, fingerprint="")
