"""Blocks from host memory into pages, while others compute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rorqual_runtime.kv_export import KvExport
from rorqual_runtime.waiting import uninterrupted

from rorqual_prefill.fetch import Group
from rorqual_prefill.hit_counts import HitCounts
from rorqual_prefill.page_io import PageIo


class SwapIn:
    """Copies in a thread of its own; on a GPU, on a stream of its own as well."""

    def __init__(self, page_io: PageIo, counts: HitCounts) -> None:
        self._page_io, self._counts = page_io, counts
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="swap-in")

    def close(self) -> None:
        """Stop after the group being copied."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    async def put(self, group: Group, pages: Sequence[int], export: KvExport) -> None:
        """Fill the prompt's pages of this group, and their places in its export.

        A cancellation waits: nothing writes to the pages any more when this has ended.
        """
        copying = asyncio.get_running_loop().run_in_executor(
            self._executor, self._copy, group, pages, export
        )
        self._counts.swap_s_total += await uninterrupted(copying)
        self._counts.swapped_blocks_total += len(group.blocks)

    def _copy(self, group: Group, pages: Sequence[int], export: KvExport) -> float:
        began_s = time.perf_counter()
        sources = [block.array for block in group.blocks]
        self._page_io.write_many(pages[group.first : group.first + len(sources)], sources)
        for index, source in enumerate(sources, start=group.first):
            export.put_page(index, source)
        return time.perf_counter() - began_s
