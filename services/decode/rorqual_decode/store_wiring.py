"""The block store of a decode instance and who writes to it: wiring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_policy.blocks import block_lifetime_s
from rorqual_policy.eviction import ValueEviction
from rorqual_policy.provenance import Provenance
from rorqual_runtime import blockstore, subjects
from rorqual_runtime.blockstore import (
    BlockMark,
    BlockStoreBackend,
    ForgetNotices,
    Lifetime,
    open_block_store,
)
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.logs import get_logger
from rorqual_runtime.service import ServiceContext

from rorqual_decode import convert
from rorqual_decode.block_writer import BlockTraits, BlockWriter, StoredBlock
from rorqual_decode.settings import DecodeSettings

_CLOSE_S = 2.0

log = get_logger(__name__)


async def open_store(
    ctx: ServiceContext, settings: DecodeSettings, model: CausalModel, stack: AsyncExitStack
) -> BlockStoreBackend:
    """The store, told what to drop."""
    notices = ForgetNotices(ctx.bus)
    ctx.track(notices.run())
    store = await stack.enter_async_context(
        open_block_store(
            settings.store_place(ctx.settings.home),
            settings.store_capacity_bytes,
            ctx.clock,
            eviction=ValueEviction(),
            on_forgotten=notices.add,
            io_mode=settings.store_io,
        )
    )
    await ctx.bus.subscribe(
        subjects.kvmeta_drop(), convert.DropMessage, partial(_on_drop, store, model.fingerprint)
    )
    await ctx.bus.subscribe(
        subjects.kvmeta_hold(),
        convert.HoldMessage,
        partial(_on_hold, store),
        queue=f"store-{store.identity}",
    )
    return store


def open_writer(
    settings: DecodeSettings,
    model: CausalModel,
    cache: PagedKvCache,
    store: BlockStoreBackend,
    on_stored: Callable[[StoredBlock], None],
    stack: AsyncExitStack,
) -> BlockWriter:
    """Who writes to the store."""
    writer = BlockWriter(
        store,
        fingerprint=model.fingerprint,
        read_page=partial(read_page, cache),
        lifetime_s=partial(_lifetime_s, settings),
        mark=_mark,
        on_stored=on_stored,
        max_queued=settings.block_queue_blocks,
        stored_replays=settings.stored_replays,
    )
    writer.start()
    stack.push_async_callback(asyncio.to_thread, writer.close, _CLOSE_S)
    return writer


def read_page(cache: PagedKvCache, page: int) -> Any:
    """A page's bytes on the host: the page itself on the CPU, else a copy."""
    return cache.page_bytes_view(page).cpu().numpy()


async def _on_drop(
    store: BlockStoreBackend, fingerprint: str, message: Any, _context: MessageContext
) -> None:
    """Blocks that are to make room: a quota is exceeded, or an operator cleared them."""
    if message.model_fingerprint == fingerprint:
        await asyncio.to_thread(_delete, store, fingerprint, convert.named_keys(message))


def _delete(store: BlockStoreBackend, fingerprint: str, keys: Sequence[bytes]) -> None:
    num_deleted = sum(store.delete(fingerprint, key) for key in keys)
    log.info("blocks dropped", extra={"num_blocks": num_deleted})


async def _on_hold(store: BlockStoreBackend, message: Any, _context: MessageContext) -> None:
    """Blocks that somebody was promised, maybe of another model in the same store."""
    fingerprint, keys = message.model_fingerprint, convert.named_keys(message)
    await asyncio.to_thread(store.hold, fingerprint, keys, message.until_unix_s)


def _mark(traits: BlockTraits) -> BlockMark:
    is_exact = traits.provenance is Provenance.EXACT
    by_class = Lifetime.CHAT if convert.is_chat(traits.traffic_class) else Lifetime.AGENT
    return BlockMark(
        blockstore.Provenance.EXACT if is_exact else blockstore.Provenance.REPLAYED,
        Lifetime.OWN if traits.ttl_s else by_class,
        depth=traits.position,
    )


def _lifetime_s(settings: DecodeSettings, traffic_class: int) -> float:
    return block_lifetime_s(
        is_chat=convert.is_chat(traffic_class),
        chat_s=settings.chat_lifetime_s,
        agent_s=settings.agent_lifetime_s,
    )
