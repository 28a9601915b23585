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

    def get_many(self, fingerprint: str, wanted: Sequence[tuple[bytes, Any]]) -> list[bool]: ...


FillPages = Callable[[Sequence[int], Callable[[Sequence[Any]], list[bool]]], list[bool]]
"""Lets the second argument write the pages named by the first; its result, page by page."""

GROUP_BLOCKS = 8
"""Read side by side."""


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What the store gave: the first num_blocks pages hold verified KV."""

    num_blocks: int
    missing: list[bytes] = field(default_factory=list)
    """Blocks kvmeta promised that are not there."""
    corrupt: list[bytes] = field(default_factory=list)
    """Blocks that were there and failed verification."""


class PrefixLoader:
    """Reads groups of blocks from one worker thread: neither event loop nor engine waits.

    fill_pages(pages, fill) lets `fill` write pages; nothing else touches them meanwhile.
    """

    def __init__(self, store: BlockSource, *, fingerprint: str, fill_pages: FillPages) -> None:
        self._store = store
        self._fingerprint = fingerprint
        self._fill_pages = fill_pages
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefix-loader")

    def close(self) -> None:
        """Stop after the blocks being read."""
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
        the next group and returns only when nothing writes to the pages any more.
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
        for first in range(0, len(keys), GROUP_BLOCKS):
            if stop.is_set():
                return PrefixHit(first)
            group = self._stored(keys[first : first + GROUP_BLOCKS])
            targets = pages[first : first + len(group)]
            is_read = self._fill_pages(targets, partial(self._read, group)) if group else []
            num_read = next((n for n, ok in enumerate(is_read) if not ok), len(group))
            for index in range(first, first + num_read):
                on_page(index)
            if first + num_read < min(first + GROUP_BLOCKS, len(keys)):
                corrupt = [key for key, ok in zip(group, is_read, strict=True) if not ok]
                return self._end_of_hit(
                    keys[first + num_read : num_promised], first + num_read, corrupt
                )
        return PrefixHit(len(keys))

    def _stored(self, keys: Sequence[bytes]) -> Sequence[bytes]:
        """The keys before the first one that is not in the store."""
        absent = (n for n, key in enumerate(keys) if not self._store.has(self._fingerprint, key))
        return keys[: next(absent, len(keys))]

    def _read(self, keys: Sequence[bytes], targets: Sequence[Any]) -> list[bool]:
        return self._store.get_many(self._fingerprint, list(zip(keys, targets, strict=True)))

    def _end_of_hit(
        self, promised: Sequence[bytes], num_blocks: int, corrupt: list[bytes]
    ) -> PrefixHit:
        """Name what kvmeta should not promise again, of what it promised behind the hit."""
        gone = [key for key in promised if not self._store.has(self._fingerprint, key)]
        missing = [key for key in gone if key not in corrupt]
        return PrefixHit(num_blocks, missing=missing, corrupt=corrupt)
