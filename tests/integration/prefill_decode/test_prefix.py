"""Prompts that were seen before are not computed again, and wrong blocks are never used."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import closing

from rorqual_policy.blocks import block_keys
from rorqual_policy.prefix_fetch import FetchChoice
from rorqual_prefill import fetch
from rorqual_proto.v1 import kvmeta_pb2
from rorqual_runtime import subjects
from rorqual_runtime.blockstore import BlockStore, Lifetime

from tests.integration.prefill_decode.conftest import prompt
from tests.integration.prefill_decode.fleet import NAMESPACE, running_fleet
from tests.support.blocks import find_record, flip_bit, open_store
from tests.support.servers import redis_server
from tests.support.waiting import WAIT_S, until


async def test_a_repeated_prompt_computes_only_its_last_partial_block(
    runtime_settings, tiny_model, tiny_dir, bare
):
    token_ids = prompt(2000)
    expected = bare(token_ids, 8)
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        around, engine = fleet.around, fleet.prefill[0][1].engine
        first = await around.complete("first", token_ids, ignore_eos=True)
        assert (first.num_cached_tokens, engine.num_computed_tokens) == (0, 2000)
        await until(lambda: len(around.registered) == 15, "15 blocks to be registered")
        second = await around.complete("second", token_ids, ignore_eos=True)
        assert engine.num_computed_tokens == 2000 + 2000 - 1920
        assert second.num_cached_tokens == 1920
        assert first.token_ids == second.token_ids == expected
        assert around.forgotten == []
        await fleet.nothing_held()


async def test_a_prompt_of_whole_blocks_still_computes_one_block(
    runtime_settings, tiny_model, tiny_dir, bare
):
    token_ids = prompt(256)
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        await fleet.around.complete("first", token_ids, ignore_eos=True)
        await until(lambda: len(fleet.around.registered) == 2, "2 blocks to be registered")
        second = await fleet.around.complete("second", token_ids, ignore_eos=True)
        assert second.num_cached_tokens == 128
        assert second.token_ids == bare(token_ids, 8)


async def test_an_answer_becomes_the_prefix_of_the_next_turn(
    runtime_settings, tiny_model, tiny_dir, bare
):
    token_ids = prompt(100)
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        around = fleet.around
        first = await around.complete("a", token_ids, max_new_tokens=200, ignore_eos=True)
        next_turn = token_ids + first.token_ids + prompt(10, seed=3)
        await until(lambda: len(around.registered) == 2, "2 blocks to be registered")
        keys = block_keys(next_turn, fingerprint=tiny_model.fingerprint, namespace=NAMESPACE)
        assert set(around.registered) == set(keys)
        second = await around.complete("b", next_turn, ignore_eos=True)
        assert second.num_cached_tokens == 256
        assert second.token_ids == bare(next_turn, 8)


async def test_blocks_live_as_long_as_their_request_asks(runtime_settings, tiny_model, tiny_dir):
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        around = fleet.around
        began_unix_s = time.time()
        await around.complete("first", prompt(250), max_new_tokens=20, cache_ttl_s=3600)
        await until(lambda: len(around.registered) == 2, "prompt and answer to be registered")
        assert {block.lifetime_s for block in around.registered.values()} == {3600}
        with closing(open_store(runtime_settings.home / "store", 1 << 30)) as store:
            for listing in store.listing():
                assert 3600 <= listing.expires_unix_s - began_unix_s <= 3600 + WAIT_S + 1
                assert listing.mark.lifetime is Lifetime.OWN


async def test_dropped_blocks_leave_the_store(runtime_settings, tiny_model, tiny_dir):
    token_ids = prompt(700)
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        around = fleet.around
        await around.complete("first", token_ids, ignore_eos=True)
        await until(lambda: len(around.registered) == 5, "5 blocks to be registered")
        drop = kvmeta_pb2.DropBlocksRequest(
            model_fingerprint=tiny_model.fingerprint, packed_keys=b"".join(around.registered)
        )
        await around.bus.publish(subjects.kvmeta_drop(), drop)
        names = iter(range(1000))

        async def is_cold() -> bool:
            again = await around.complete(f"again-{next(names)}", token_ids, ignore_eos=True)
            return again.num_cached_tokens == 0

        await until(is_cold, "the blocks to be gone")


def traced(home):
    return "".join(path.read_text() for path in (home / "traces").glob("*.jsonl"))


async def test_a_damaged_block_is_computed_again(runtime_settings, tiny_model, tiny_dir, bare):
    token_ids = prompt(700)
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        around = fleet.around
        await around.complete("first", token_ids, ignore_eos=True)
        await until(lambda: len(around.registered) == 5, "5 blocks to be registered")
        keys = block_keys(token_ids, fingerprint=tiny_model.fingerprint, namespace=NAMESPACE)
        path, offset = find_record(runtime_settings.home / "store", keys[2])
        flip_bit(path, offset + 4096)
        second = await around.complete("second", token_ids, ignore_eos=True)
        assert second.num_cached_tokens == 256
        assert second.token_ids == bare(token_ids, 8)
        assert around.forgotten == [(keys[2], "corrupt")]
        assert second.miss_reason == "corrupt"
        told = '"rorqual.kv.miss_reason": "corrupt"'
        await until(lambda: told in traced(runtime_settings.home), "the trace to say why")


async def test_blocks_that_do_not_come_in_time_are_computed(
    runtime_settings, tiny_model, tiny_dir, bare, monkeypatch
):
    token_ids, hang, num_reads = prompt(2000), threading.Event(), itertools.count()
    read = BlockStore.get_many

    def hang_after_the_first(self, fingerprint, wanted):
        assert next(num_reads) == 0 or hang.wait(WAIT_S)
        return read(self, fingerprint, wanted)

    def patience_s(_cost, first_block, _num_blocks, **_):
        return 0.1 if first_block else WAIT_S

    small = {"host_blocks_bytes": 32 * tiny_model.kv_layout.page_bytes}  # groups of 8
    async with running_fleet(runtime_settings, tiny_model, tiny_dir, prefill=small) as fleet:
        around, engine = fleet.around, fleet.prefill[0][1].engine
        await around.complete("first", token_ids, ignore_eos=True)
        await until(lambda: len(around.registered) == 15, "15 blocks to be registered")
        monkeypatch.setattr(BlockStore, "get_many", hang_after_the_first)
        monkeypatch.setattr(fetch, "fetch_patience_s", patience_s)
        second = await around.complete("second", token_ids, ignore_eos=True)
        assert (second.num_cached_tokens, engine.num_computed_tokens) == (1024, 2000 + 976)
        assert second.token_ids == bare(token_ids, 8)
        assert fleet.prefill[0][1].counts.late_blocks_total == 7
        assert around.forgotten == []
        hang.set()
        await fleet.nothing_held()


async def test_a_decode_instance_reads_blocks_for_prefill(
    runtime_settings, tiny_model, tiny_dir, bare, monkeypatch
):
    """Whoever is chosen, also one that has gone: then the own store is read."""
    token_ids, reader = prompt(2000), ["decode-0"]

    def choose(prefix, sources, cost, wait_s):
        return FetchChoice(prefix.num_blocks, reader[0], 0.0, "the test says so")

    monkeypatch.setattr(fetch, "choose_fetch", choose)
    little = {"host_blocks_bytes": 1}  # so that the second time all is read again
    async with running_fleet(runtime_settings, tiny_model, tiny_dir, prefill=little) as fleet:
        around, counts = fleet.around, fleet.prefill[0][1].counts
        await around.complete("first", token_ids, ignore_eos=True)
        await until(lambda: len(around.registered) == 15, "15 blocks to be registered")
        second = await around.complete("second", token_ids, ignore_eos=True)
        assert (second.num_cached_tokens, second.token_ids) == (1920, bare(token_ids, 8))
        assert (counts.relayed_blocks_total, counts.fetched_blocks_total) == (15, 0)
        assert fleet.decode[0][1].relay.facts().num_blocks == 15
        reader[0] = "decode-9"
        third = await around.complete("third", token_ids, ignore_eos=True)
        assert (third.num_cached_tokens, third.token_ids) == (1920, bare(token_ids, 8))
        assert counts.relayed_blocks_total == 15
        await fleet.nothing_held()


async def test_a_vanished_block_is_forgotten(runtime_settings, tiny_model, tiny_dir, bare):
    token_ids = prompt(700)
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        around = fleet.around
        output = await around.complete("r", token_ids, num_matched_blocks=2, ignore_eos=True)
        assert output.token_ids == bare(token_ids, 8)
        keys = block_keys(token_ids, fingerprint=tiny_model.fingerprint, namespace=NAMESPACE)
        assert around.forgotten == [(keys[0], "missing"), (keys[1], "missing")]


async def test_tenants_do_not_share_blocks(runtime_settings, tiny_model, tiny_dir):
    token_ids = prompt(300)
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        await fleet.around.complete("r", token_ids, ignore_eos=True)
        await until(lambda: len(fleet.around.registered) == 2, "2 blocks to be registered")
        others = block_keys(token_ids, fingerprint=tiny_model.fingerprint, namespace="other")
        assert not set(others) & set(fleet.around.registered)


async def test_blocks_may_be_kept_on_a_redis_server(
    runtime_settings, tiny_model, tiny_dir, bare, tmp_path
):
    token_ids = prompt(700)
    async with redis_server(tmp_path) as server:
        store = {"store_url": server.url}
        async with running_fleet(
            runtime_settings, tiny_model, tiny_dir, prefill=store, decode=store
        ) as fleet:
            await fleet.around.complete("first", token_ids, ignore_eos=True)
            await until(lambda: len(fleet.around.registered) == 5, "5 blocks to be registered")
            second = await fleet.around.complete("second", token_ids, ignore_eos=True)
            assert second.num_cached_tokens == 640
            assert second.token_ids == bare(token_ids, 8)
    assert not (runtime_settings.home / "store").exists()


async def test_what_a_full_store_evicts_is_told(runtime_settings, tiny_model, tiny_dir):
    page_bytes = tiny_model.kv_layout.page_bytes
    small = {"store_capacity_bytes": 5 * (page_bytes + 8192)}
    async with running_fleet(
        runtime_settings, tiny_model, tiny_dir, prefill=small, decode=small
    ) as fleet:
        around = fleet.around
        await around.complete("first", prompt(1500), ignore_eos=True)
        await until(lambda: len(around.registered) == 11, "11 blocks to be registered")
        await until(lambda: len(around.forgotten) >= 6, "the evicted blocks to be told")
        assert {reason for _, reason in around.forgotten} == {"evicted"}
        assert {key for key, _ in around.forgotten} <= set(around.registered)
