"""With the real router and the real kvmeta in between: the path of a request without its edge."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing

from redis.asyncio import Redis
from rorqual_kvmeta.service import KvmetaService
from rorqual_kvmeta.settings import KvmetaSettings
from rorqual_policy.blocks import block_keys
from rorqual_proto.v1 import router_pb2
from rorqual_router.service import RouterService
from rorqual_router.settings import RouterSettings
from rorqual_runtime import subjects
from rorqual_runtime.blockstore.record import PAGE_BYTES
from rorqual_runtime.blockstore.slot_io import pages_of
from rorqual_runtime.queue import WorkQueue
from rorqual_runtime.redis_link import RedisLink
from rorqual_runtime.service import open_service

from tests.integration.prefill_decode.conftest import prompt
from tests.integration.prefill_decode.fleet import (
    NAMESPACE,
    Fleet,
    Received,
    make_generation,
    running_fleet,
)
from tests.support.blocks import find_record, flip_bit, open_store, swap_records
from tests.support.waiting import WAIT_S, until


@asynccontextmanager
async def neighbours(runtime, redis_url: str) -> AsyncIterator[KvmetaService]:
    """Router and kvmeta, ready."""
    async with AsyncExitStack() as stack:
        link = RedisLink(redis_url, timeout_s=WAIT_S, probe_interval_s=0.5, max_connections=4)
        stack.push_async_callback(link.aclose)
        settings = runtime.model_copy(update={"instance_id": "kvmeta-0"})
        ctx = await stack.enter_async_context(open_service("kvmeta", settings))
        kvmeta = KvmetaService(ctx, link, KvmetaSettings())
        await kvmeta.start()
        settings = runtime.model_copy(update={"instance_id": "router-0"})
        ctx = await stack.enter_async_context(open_service("router", settings))
        queue = WorkQueue(ctx.bus)
        await queue.ensure()
        await RouterService(ctx, queue, RouterSettings(match_timeout_s=WAIT_S)).start()
        yield kvmeta


async def submit(fleet: Fleet, request_id: str, token_ids, **options) -> Received:
    request = router_pb2.SubmitRequest(
        generations=[make_generation(request_id, token_ids, ignore_eos=True, **options)]
    )
    reply = await fleet.around.bus.request(
        subjects.router_submit(), request, router_pb2.SubmitReply, timeout_s=WAIT_S
    )
    assert reply.submitted.bucket == "lt16k"
    return await fleet.around.finished(request_id)


def num_held(home) -> int:
    """Blocks of the store that are not to be evicted now."""
    store = open_store(home / "store", 1 << 30)
    now_unix_s = time.time()
    try:
        return sum(listing.last_used_unix_s > now_unix_s for listing in store.listing())
    finally:
        store.close()


async def saved(url: str) -> dict[bytes, bytes]:
    """All that kvmeta keeps in Redis."""
    async with Redis.from_url(url) as redis:
        names = [name async for name in redis.scan_iter(match="rorqual:*")]
        return {name: await redis.dump(name) for name in names}


async def restore(url: str, snapshot: dict[bytes, bytes]) -> None:
    async with Redis.from_url(url) as redis:
        await redis.flushdb()
        for name, value in snapshot.items():
            await redis.restore(name, 0, value)


async def test_no_harm_to_store_or_redis_changes_a_token(
    runtime_settings, redis_server, tiny_model, tiny_dir, bare
):
    """Bits flip, slots change places, a segment is cut, an old snapshot of Redis comes back."""
    home, token_ids = runtime_settings.home, prompt(2000)
    keys = block_keys(token_ids, fingerprint=tiny_model.fingerprint, namespace=NAMESPACE)
    slot_bytes = PAGE_BYTES + pages_of(tiny_model.kv_layout.page_bytes)
    little = {"host_blocks_bytes": 1}  # so that nearly all is read again each time

    def flip() -> None:
        for key in keys[4:7]:
            path, offset = find_record(home / "store", key)
            flip_bit(path, offset + PAGE_BYTES + 7)

    def swap() -> None:
        swap_records(home / "store", keys[11], keys[13], slot_bytes)

    def cut() -> None:
        path, offset = find_record(home / "store", keys[8])
        os.truncate(path, offset + slot_bytes // 2)

    async with (
        neighbours(runtime_settings, redis_server.url) as kvmeta,
        running_fleet(
            runtime_settings, tiny_model, tiny_dir, prefill=little, with_stubs=False
        ) as fleet,
    ):

        def is_all_stored() -> bool:
            (_, decode), *_ = fleet.decode
            num_late = decode.writer.num_queued + decode.registrar.num_waiting
            return num_late == 0 and kvmeta.index.num_live == 15

        async def ask(name: str) -> tuple[int, str]:
            """Cached blocks, and why there were no more."""
            output = await submit(fleet, name, token_ids)
            assert output.token_ids == bare(token_ids, 8)
            await until(is_all_stored, "all blocks to be stored again")
            return output.num_cached_tokens // 128, output.miss_reason

        assert await ask("first") == (0, "never_stored")
        snapshot = await saved(redis_server.url)
        counts = fleet.prefill[0][1].counts
        for harm in (flip, swap, cut):
            harm()
            reasons = []
            while (found := await ask(f"{harm.__name__}-{len(reasons)}")) != (15, ""):
                reasons.append(found[1])
                assert len(reasons) < 10, "the store does not heal"
            assert set(reasons) == {"corrupt"}
        assert counts.corrupt_blocks_total >= 5 and counts.missing_blocks_total == 0
        with closing(open_store(home / "store", 1 << 30)) as store:
            assert all(store.delete(tiny_model.fingerprint, key) for key in keys[5:])
        await restore(redis_server.url, snapshot)
        num_resyncs = kvmeta.mirror.num_resyncs
        kvmeta.mirror.request("as after a restart of Redis")
        await until(lambda: kvmeta.mirror.num_resyncs > num_resyncs)
        assert await ask("restored") == (5, "evicted")
        assert counts.missing_blocks_total == 10
        assert await ask("whole at last") == (15, "")
        await fleet.nothing_held()


async def test_a_repeated_prompt_of_2000_tokens_is_read_from_the_store_where_a_lease_holds_it(
    runtime_settings, redis_server, tiny_model, tiny_dir, bare
):
    token_ids = prompt(2000)
    async with (
        neighbours(runtime_settings, redis_server.url),
        running_fleet(
            runtime_settings, tiny_model, tiny_dir, num_decode=2, with_stubs=False
        ) as fleet,
    ):
        first = await submit(fleet, "first", token_ids)
        registrars = [decode.registrar for _, decode in fleet.decode]
        writers = [decode.writer for _, decode in fleet.decode]
        await until(
            lambda: (
                sum(w.num_stored for w in writers) == 15
                and not any(r.num_waiting for r in registrars)
            ),
            "15 blocks to be registered",
        )
        second = await submit(fleet, "second", token_ids)
        assert fleet.prefill[0][1].engine.num_computed_tokens == 2000 + 80
        assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 1920)
        assert first.token_ids == second.token_ids == bare(token_ids, 8)
        await until(lambda: num_held(runtime_settings.home) == 15, "the match to hold its blocks")
        await fleet.nothing_held()


async def test_load_spreads_over_both_decode_instances(
    runtime_settings, redis_server, tiny_model, tiny_dir, bare
):
    async with (
        neighbours(runtime_settings, redis_server.url),
        running_fleet(
            runtime_settings,
            tiny_model,
            tiny_dir,
            num_prefill=2,
            num_decode=2,
            with_stubs=False,
        ) as fleet,
    ):
        outputs = await asyncio.gather(
            *(submit(fleet, f"r{n}", prompt(40, n), max_new_tokens=30) for n in range(12))
        )
        for n, output in enumerate(outputs):
            assert output.token_ids == bare(prompt(40, n), 30)
        assert {i for output in outputs for i in output.decode_ids} == {"decode-0", "decode-1"}
        await fleet.nothing_held()
