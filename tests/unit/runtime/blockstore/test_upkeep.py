"""A store that nobody uses still gets rid of what has expired."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rorqual_policy import ValueEviction
from rorqual_runtime.blockstore import open_block_store
from rorqual_runtime.clock import WallClock

from tests.support.blocks import FINGERPRINT, key_of, put


async def test_expired_blocks_leave_an_idle_store_and_others_stay(tmp_path: Path) -> None:
    gone: list[bytes] = []
    opened = open_block_store(
        tmp_path,
        1 << 20,
        WallClock(),
        eviction=ValueEviction(),
        on_forgotten=lambda blocks: gone.extend(block.key for block in blocks),
        interval_s=0.001,
    )
    async with opened as store:
        put(store, 1, ttl_s=0.01)
        put(store, 2, ttl_s=3600)
        async with asyncio.timeout(30):
            while store.stats().num_blocks > 1 or not gone:
                await asyncio.sleep(0.01)
        assert gone == [key_of(1)] and store.has(FINGERPRINT, key_of(2))
