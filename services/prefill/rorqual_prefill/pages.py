"""Waiting for KV pages, first come first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rorqual_engine.errors import NoPages
from rorqual_engine.kv import PagedKvCache, PageLease
from rorqual_runtime.errors import ContextTooLong, QueueTimeout


class PageGate:
    """Leases of KV pages in the order they were asked for, so a large prompt is not starved.

    Lives on the event loop; every release through `lease` wakes the next one in line.
    """

    def __init__(self, cache: PagedKvCache) -> None:
        self._cache = cache
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def num_free(self) -> int:
        """Pages free right now, promised to nobody; none while every window slot is taken."""
        return 0 if self._line or not self._cache.can_open else self._cache.num_free

    @asynccontextmanager
    async def lease(self, num_pages: int, timeout_s: float) -> AsyncIterator[PageLease]:
        """Pages for the duration of the block.

        Raises: ContextTooLong when the cache could never hold them; QueueTimeout.
        """
        if num_pages > self._cache.num_pages:
            page_tokens = self._cache.layout.page_tokens
            raise ContextTooLong(num_pages * page_tokens, self._cache.num_pages * page_tokens)
        lease = await self._take(num_pages, timeout_s)
        try:
            yield lease
        finally:
            lease.release()
            self._wake_first()

    async def _take(self, num_pages: int, timeout_s: float) -> PageLease:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if self._line[0] is turn and (lease := self._try(num_pages)) is not None:
                        return lease
                    await turn
                    turn = self._next_turn(turn)
        except TimeoutError:
            raise QueueTimeout(f"no {num_pages} KV pages came free in {timeout_s:.1f} s") from None
        finally:
            self._line.remove(turn)
            self._wake_first()

    def _next_turn(self, turn: asyncio.Future[None]) -> asyncio.Future[None]:
        """A fresh future at the same place in the line."""
        fresh: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line[self._line.index(turn)] = fresh
        return fresh

    def _try(self, num_pages: int) -> PageLease | None:
        try:
            return self._cache.allocate(num_pages)
        except NoPages:
            return None

    def _wake_first(self) -> None:
        if self._line and not self._line[0].done():
            self._line[0].set_result(None)
