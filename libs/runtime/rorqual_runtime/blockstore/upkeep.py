"""A store that is looked after: expired blocks leave it also while nobody writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from rorqual_runtime.blockstore.backend import BlockStoreBackend, OnForgotten
from rorqual_runtime.blockstore.redis_store import RedisBlockStore
from rorqual_runtime.blockstore.slot_io import IoMode
from rorqual_runtime.blockstore.store import BlockStore
from rorqual_runtime.blockstore.survey import EvictionPolicy
from rorqual_runtime.clock import Clock
from rorqual_runtime.logs import get_logger
from rorqual_runtime.waiting import uninterrupted

MAINTAIN_INTERVAL_S = 5.0

log = get_logger(__name__)


def make_block_store(
    place: Path | str,
    capacity_bytes: int,
    *,
    eviction: EvictionPolicy,
    clock: Clock | None = None,
    on_forgotten: OnForgotten | None = None,
    io_mode: IoMode = "direct",
) -> BlockStoreBackend:
    """The store of a directory, or of a server: redis://, rediss:// or valkey:// URL, which bounds
    its own size.

    Raises: OSError when the directory cannot be used at all.
    """
    if isinstance(place, str) and "://" in place:
        return RedisBlockStore(place, clock=clock, on_forgotten=on_forgotten)
    return BlockStore(
        Path(place),
        capacity_bytes,
        eviction=eviction,
        clock=clock,
        on_forgotten=on_forgotten,
        io_mode=io_mode,
    )


@contextlib.asynccontextmanager
async def open_block_store(
    place: Path | str,
    capacity_bytes: int,
    clock: Clock,
    *,
    eviction: EvictionPolicy,
    on_forgotten: OnForgotten | None = None,
    io_mode: IoMode = "direct",
    interval_s: float = MAINTAIN_INTERVAL_S,
) -> AsyncIterator[BlockStoreBackend]:
    """The store of `make_block_store`, maintained at each interval, closed after the block.

    Raises: OSError when the directory cannot be used at all.
    """
    store = await asyncio.to_thread(
        make_block_store,
        place,
        capacity_bytes,
        eviction=eviction,
        clock=clock,
        on_forgotten=on_forgotten,
        io_mode=io_mode,
    )
    upkeep = asyncio.get_running_loop().create_task(_maintain_for_ever(store, clock, interval_s))
    try:
        yield store
    finally:
        upkeep.cancel()
        await asyncio.gather(upkeep, return_exceptions=True)
        await asyncio.to_thread(store.close)


async def _maintain_for_ever(store: BlockStoreBackend, clock: Clock, interval_s: float) -> None:
    while True:
        await clock.sleep(interval_s)
        try:
            await uninterrupted(asyncio.to_thread(store.maintain))
        except Exception:
            log.exception("the block store could not be maintained")
