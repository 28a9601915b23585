"""How what reads stored blocks is put together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from rorqual_engine.models.base import CausalModel
from rorqual_policy.eviction import ValueEviction
from rorqual_policy.prefill_order import SHORT_FIRST, prefill_key_s
from rorqual_runtime.blockstore import (
    DamagedBlocks,
    ForgetNotices,
    ForgottenBlock,
    open_block_store,
)
from rorqual_runtime.clock import Clock
from rorqual_runtime.service import ServiceContext

from rorqual_prefill.compute import PrefillEngine
from rorqual_prefill.fetch import BlockFetcher, EngineView
from rorqual_prefill.hit_counts import HitCounts
from rorqual_prefill.host_blocks import MIN_HOST_BLOCKS, HostBlocks
from rorqual_prefill.relays import Relays
from rorqual_prefill.service import ActiveJob
from rorqual_prefill.settings import PrefillSettings


async def open_fetcher(
    ctx: ServiceContext,
    settings: PrefillSettings,
    model: CausalModel,
    engine: PrefillEngine,
    counts: HitCounts,
    stack: AsyncExitStack,
) -> BlockFetcher:
    """The store with whoever reads it; closed by the stack."""
    notices = ForgetNotices(ctx.bus, ("evicted", "expired"))  # the fetcher's user tells of the rest
    damaged = DamagedBlocks()
    ctx.track(notices.run())

    def note(blocks: Sequence[ForgottenBlock]) -> None:
        notices.add(blocks)
        damaged.add(blocks)

    store = await stack.enter_async_context(
        open_block_store(
            settings.store_place(ctx.settings.home),
            settings.store_capacity_bytes,
            ctx.clock,
            eviction=ValueEviction(),
            on_forgotten=note,
            io_mode=settings.store_io,
        )
    )
    block_bytes = model.kv_layout.page_bytes
    host = HostBlocks(
        max(MIN_HOST_BLOCKS, settings.host_blocks_bytes // block_bytes),
        block_bytes,
        is_page_locked=model.device.type == "cuda",
    )
    relays = Relays(ctx, model.fingerprint, block_bytes, lambda: store.identity)
    await relays.listen()
    fetcher = BlockFetcher(
        store,
        host,
        EngineView(lambda: engine.cost, engine.wait_s),
        relays,
        counts,
        was_damaged=damaged.take,
        fingerprint=model.fingerprint,
        clock=ctx.clock,
        tracer=ctx.tracer,
    )
    stack.push_async_callback(asyncio.to_thread, fetcher.close)
    return fetcher


def urgency_s(engine: PrefillEngine, clock: Clock, active: ActiveJob) -> float:
    """A prompt's place in the line for blocks: the one that it will have in the engine."""
    work_s = active.num_queued_tokens / engine.tokens_per_s if engine.tokens_per_s else 0.0
    arrival_s = active.job.submitted_unix_s or clock.now_unix_s()
    return prefill_key_s(arrival_s, work_s, SHORT_FIRST)
