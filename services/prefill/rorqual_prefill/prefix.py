"""Stored prefix blocks straight into KV pages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from rorqual_runtime.waiting import uninterrupted


class BlockSource(Protocol):
    """The part of the block store that prefill reads."""

    def has(self, fingerprint: str, key: bytes) -> bool: ...

    def get(self, fingerprint: str, key: bytes, into: Any) -> bool: ...


FillPage = Callable[[int, Callable[[Any], bool]], bool]
"""Lets the second argument write the page named by the first; its result."""


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What the store gave: the first num_blocks pages hold verified KV."""

    num_blocks: int
    missing: list[bytes] = field(default_factory=list)
    """Blocks kvmeta promised that are not there."""
    corrupt: list[bytes] = field(default_factory=list)
    """Blocks that were there and failed verification."""


class PrefixLoader:
    """Reads blocks in one worker thread, so that neither the event loop nor the engine waits.

    fill_page(page, fill) lets `fill` write a page; nothing else touches a page while it is loaded.
    """

    def __init__(self, store: BlockSource, *, fingerprint: str, fill_page: FillPage) -> None:
        self._store = store
        self._fingerprint = fingerprint
        self._fill_page = fill_page
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefix-loader")

    def close(self) -> None:
        """Stop after the block being read."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    async def load(
        self,
        keys: Sequence[bytes],
        pages: Sequence[int],
        *,
        num_promised: int,
        on_page: Callable[[int], None],
    ) -> PrefixHit:
        """Fill pages with the longest stored prefix of keys; the first miss ends it.

        on_page(index) is called in the worker thread after each block. A cancellation stops before
        the next block and returns only when nothing writes to the pages any more.
        """
        if not keys:
            return PrefixHit(0)
        stop = threading.Event()
        work = asyncio.get_running_loop().run_in_executor(
            self._executor, self._load, keys, pages, num_promised, on_page, stop
        )
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            await uninterrupted(asyncio.wait({work}))
            raise

    def _load(
        self,
        keys: Sequence[bytes],
        pages: Sequence[int],
        num_promised: int,
        on_page: Callable[[int], None],
        stop: threading.Event,
    ) -> PrefixHit:
        for index, (key, page) in enumerate(zip(keys, pages, strict=True)):
            if stop.is_set():
                return PrefixHit(index)
            was_there = self._store.has(self._fingerprint, key)
            read = partial(self._store.get, self._fingerprint, key)
            if not was_there or not self._fill_page(page, read):
                return self._end_of_hit(keys, index, num_promised, was_there)
            on_page(index)
        return PrefixHit(len(keys))

    def _end_of_hit(
        self, keys: Sequence[bytes], index: int, num_promised: int, was_there: bool
    ) -> PrefixHit:
        """The hit ends before block `index`; name what kvmeta should not promise again."""
        corrupt = [keys[index]] if was_there else []
        rest = keys[index + 1 : num_promised] if was_there else keys[index:num_promised]
        missing = [key for key in rest if not self._store.has(self._fingerprint, key)]
        return PrefixHit(index, missing=missing, corrupt=corrupt)
