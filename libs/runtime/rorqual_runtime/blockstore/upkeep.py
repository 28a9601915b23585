"""A store that is looked after: expired blocks leave it also while nobody writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from rorqual_runtime.blockstore.store import BlockStore
from rorqual_runtime.clock import Clock
from rorqual_runtime.logs import get_logger
from rorqual_runtime.waiting import uninterrupted

MAINTAIN_INTERVAL_S = 5.0

log = get_logger(__name__)


@contextlib.asynccontextmanager
async def open_block_store(
    directory: Path,
    capacity_bytes: int,
    clock: Clock,
    *,
    interval_s: float = MAINTAIN_INTERVAL_S,
) -> AsyncIterator[BlockStore]:
    """The store of a directory, one shard maintained each interval, closed after the block.

    Raises: OSError when the directory cannot be used at all.
    """
    store = await asyncio.to_thread(BlockStore, directory, capacity_bytes, clock=clock)
    upkeep = asyncio.get_running_loop().create_task(_maintain_for_ever(store, clock, interval_s))
    try:
        yield store
    finally:
        upkeep.cancel()
        await asyncio.gather(upkeep, return_exceptions=True)
        store.close()


async def _maintain_for_ever(store: BlockStore, clock: Clock, interval_s: float) -> None:
    while True:
        await clock.sleep(interval_s)
        try:
            await uninterrupted(asyncio.to_thread(store.maintain))
        except Exception:
            log.exception("the block store could not be maintained")
