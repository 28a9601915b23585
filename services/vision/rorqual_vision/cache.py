"""Embeddings by image content, bounded in bytes; the same image is encoded once at a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Rows of one image as bytes; shape [num_tokens, hidden] of dtype."""

    data: npt.NDArray[np.uint8]
    dtype: str
    num_tokens: int
    hidden: int

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes


class EmbeddingCache:
    """Least recently used embeddings leave first. Owned by one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, Embeddings] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Task[Embeddings]] = {}
        self.num_bytes = 0
        self.num_hits = 0
        self.num_misses = 0

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._kept or digest in self._under_way

    async def get(self, digest: bytes, make: Callable[[], Awaitable[Embeddings]]) -> Embeddings:
        """The embeddings of an image; `make` runs once however many ask.

        It goes on when who asked first is cancelled. Raises: what make raises, to all who wait.
        """
        if (kept := self._kept.get(digest)) is not None:
            self._kept.move_to_end(digest)
            self.num_hits += 1
            return kept
        task = self._under_way.get(digest)
        if task is None:
            self.num_misses += 1
            task = asyncio.get_running_loop().create_task(self._make(digest, make))
            self._under_way[digest] = task
            task.add_done_callback(_mark_seen)
        else:
            self.num_hits += 1
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End what is under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, digest: bytes, make: Callable[[], Awaitable[Embeddings]]) -> Embeddings:
        try:
            made = await make()
        finally:
            del self._under_way[digest]
        self._keep(digest, made)
        return made

    def _keep(self, digest: bytes, made: Embeddings) -> None:
        if made.num_bytes > self._max_bytes:
            return
        self._kept[digest] = made
        self.num_bytes += made.num_bytes
        while self.num_bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.num_bytes -= oldest.num_bytes


def _mark_seen(task: asyncio.Task[Embeddings]) -> None:
    """A failure that nobody waits for any more is no news."""
    if not task.cancelled():
        task.exception()
