"""All instances say the same: by events, by reading Redis at the start, and again after a gap."""

from dataclasses import replace

import pytest
from redis.asyncio import Redis
from rorqual_kvmeta.records import (
    Lifetimes,
    State,
    StoredBlock,
    keys_of,
    record_keys,
    records_of,
)
from rorqual_kvmeta.truth import put_records, read
from rorqual_policy import block_keys
from rorqual_policy.provenance import Provenance
from rorqual_proto.v1 import kvmeta_pb2
from rorqual_proto.v1.kvmeta_pb2 import PROVENANCE_REPLAYED
from rorqual_runtime import subjects
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.clock import ManualClock
from rorqual_runtime.errors import ServingError

from tests.support.waiting import until

from .conftest import AGENT, running_kvmeta

KEYS = block_keys(range(4 * 128), fingerprint="model", namespace="n")


def forget_everything(kvmeta):
    for part in kvmeta.index.parts():
        kvmeta.index.clear(part, None, None)


async def test_a_change_at_one_is_known_at_the_other(runtime_settings, redis_server, client):
    url = redis_server.url
    async with (
        running_kvmeta(runtime_settings, url) as first,
        running_kvmeta(runtime_settings, url) as second,
    ):
        await client.register(KEYS)
        await until(lambda: first.index.num_live == second.index.num_live == 4)
        await client.forget(KEYS[:1])
        await until(lambda: first.index.num_live == second.index.num_live == 3)
        await client.clear()
        await until(lambda: len(first.index) == len(second.index) == 0)


async def test_what_is_forgotten_while_the_index_is_loaded_is_told_to_the_others(
    runtime_settings, redis_server, client
):
    url = redis_server.url
    async with (
        running_kvmeta(runtime_settings, url) as first,
        running_kvmeta(runtime_settings, url) as second,
    ):
        await client.register(KEYS)
        await until(lambda: first.index.num_live == second.index.num_live == 4)
        forget_everything(first)
        first.mirror.is_loaded = False
        request = kvmeta_pb2.ForgetBlocksRequest(model_fingerprint="model", keys=KEYS[:1])
        await first.on_forget(request, MessageContext())
        await until(lambda: second.index.num_live == 3)


async def test_a_late_registration_brings_back_nothing_that_another_found_gone(
    runtime_settings, redis_server, client
):
    async with running_kvmeta(runtime_settings, redis_server.url) as kvmeta:
        await redis_server.kill()
        await client.register(KEYS)
        gone = kvmeta.index.lookup(keys_of(KEYS[:1]))
        gone["flags"] = State.CORRUPT
        message = kvmeta_pb2.BlockEvents(
            publisher_id="other", incarnation=1, seq=1, records=gone.tobytes()
        )
        await client.bus.publish(subjects.kvmeta_events(), message)
        await until(lambda: len(kvmeta.mirror.pending) == 3)
        await redis_server.start()
        await until(lambda: not len(kvmeta.mirror.pending) and kvmeta.link_is_up)
        assert (await client.match(KEYS)).num_matched_blocks == 0


async def test_a_new_instance_reads_what_redis_knows(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        await client.register(KEYS)
    async with running_kvmeta(runtime_settings, redis_server.url) as kvmeta:
        assert kvmeta.index.num_live == 4
        assert (await client.match(KEYS)).num_matched_blocks == 4


async def test_a_new_instance_knows_that_an_exact_block_took_the_place_of_a_replayed_one(
    runtime_settings, redis_server, client
):
    """Also where the exact one would have lived shorter."""
    async with running_kvmeta(runtime_settings, redis_server.url):
        await client.register(KEYS, provenance=PROVENANCE_REPLAYED)
        await client.register(KEYS, traffic_class=AGENT)
    async with running_kvmeta(runtime_settings, redis_server.url):
        match = await client.match(KEYS)
        assert (match.num_matched_blocks, match.num_exact_blocks) == (4, 4)


@pytest.mark.parametrize(
    ("before", "after", "num_exact"),
    [
        ({}, {"provenance": PROVENANCE_REPLAYED}, 0),
        ({"store": "other", "provenance": PROVENANCE_REPLAYED}, {}, 4),
    ],
    ids=["one store", "two stores"],
)
async def test_a_block_whose_time_is_over_says_nothing_of_the_one_that_takes_its_place(
    runtime_settings, redis_server, client, before, after, num_exact
):
    clock, url = ManualClock(), redis_server.url
    async with running_kvmeta(runtime_settings, url, clock=clock, chat_lifetime_s=10.0):
        await client.register(KEYS, **before)
        await clock.advance(15)
        await client.register(KEYS, **after)
    async with running_kvmeta(runtime_settings, url, clock=clock, chat_lifetime_s=10.0):
        match = await client.match(KEYS)
        assert (match.num_matched_blocks, match.num_exact_blocks) == (4, num_exact)


async def test_a_use_that_is_told_late_changes_nothing_but_the_life_of_a_block(redis_server):
    lifetimes = Lifetimes(chat_s=100, agent_s=100)
    block = StoredBlock(KEYS[0], 1 << 20, is_chat=True, store="other", position=3)
    replayed = replace(block, provenance=Provenance.REPLAYED)
    there = records_of("model", [replayed], lifetimes, 1000.0)
    used = records_of("model", [replace(block, store="local", position=0)], lifetimes, 1050.0)
    async with Redis.from_url(redis_server.url) as redis:
        for records, only_live in ((there, False), (used, True)):
            now_unix_s = float(records["used_unix_s"][0])
            await put_records(
                redis, records, now_unix_s=now_unix_s, memory_s=10.0, only_live=only_live
            )
        found = await read(redis, record_keys(there))
    there["used_unix_s"] = 1050
    assert found.tobytes() == there.tobytes()


async def test_an_index_that_is_not_loaded_yet_asks_redis(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        await client.register(KEYS)
    async with running_kvmeta(runtime_settings, redis_server.url) as kvmeta:
        kvmeta.mirror.is_loaded = False
        forget_everything(kvmeta)
        assert (await client.match(KEYS)).num_matched_blocks == 4


async def test_a_gap_in_events_is_made_up_for(runtime_settings, redis_server, client):
    url = redis_server.url
    async with running_kvmeta(runtime_settings, url) as kvmeta:

        async def tell(seq, records=b""):
            message = kvmeta_pb2.BlockEvents(
                publisher_id="other", incarnation=1, seq=seq, records=records
            )
            await client.bus.publish(subjects.kvmeta_events(), message)

        await client.register(KEYS)
        forget_everything(kvmeta)  # as if it had never heard of them
        before = kvmeta.mirror.num_resyncs
        await tell(1)
        await tell(2)
        await tell(4)
        await until(lambda: kvmeta.mirror.num_resyncs > before)
        assert (await client.match(KEYS)).num_matched_blocks == 4
        await tell(5, b"torn")
        await until(lambda: kvmeta.index.num_live == 4)


async def test_tenants_with_one_prompt_share_nothing_and_learn_nothing(
    runtime_settings, redis_server, client
):
    def keys(namespace):
        return block_keys(range(4 * 128), fingerprint="model", namespace=namespace)

    content = b"c" * 16
    async with running_kvmeta(runtime_settings, redis_server.url) as kvmeta:
        unasked = await client.match(keys("b"), content_key=b"d" * 16)
        await client.register(keys("a"), tenant="a", content_key=content)
        answer = await client.match(keys("b"), content_key=content)
        assert answer == unasked
        assert (answer.num_matched_blocks, answer.miss_reason) == (0, "never_stored")
        await until(lambda: kvmeta.matcher.counts.misses["namespace"] == 1)
        assert kvmeta.matcher.counts.misses["never_stored"] == 1
        traces = runtime_settings.home / "traces"
        told = '"rorqual.miss_reason": "namespace"'
        await until(lambda: any(told in path.read_text() for path in traces.iterdir()))
        assert (await client.match(keys("a"), content_key=content)).num_matched_blocks == 4


async def test_clearing_needs_redis(runtime_settings, redis_server, client):
    async with running_kvmeta(runtime_settings, redis_server.url):
        await client.register(KEYS)
        await redis_server.kill()
        try:
            await client.clear()
        except ServingError as error:
            assert error.retryable
        else:
            raise AssertionError("cleared without redis: it would all come back")
        assert (await client.match(KEYS)).num_matched_blocks == 4
