"""A store that nobody uses still gets rid of what has expired."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rorqual_runtime.blockstore import open_block_store
from rorqual_runtime.clock import WallClock


async def test_expired_blocks_leave_an_idle_store_and_others_stay(tmp_path: Path) -> None:
    async with open_block_store(tmp_path, 1 << 20, WallClock(), interval_s=0.001) as store:
        store.put("f", b"short", b"x" * 100, ttl_s=0.01)
        store.put("f", b"long", b"y" * 100, ttl_s=3600)
        async with asyncio.timeout(30):
            while store.stats().num_blocks > 1:
                await asyncio.sleep(0.01)
        assert store.has("f", b"long")
        assert sorted(path.name[-8:] for path in tmp_path.glob("??/*")) == [b"long".hex()]
