"""KV pages of a prompt from the tensor plane into pages of our own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from rorqual_engine.kv import PagedKvCache
from rorqual_runtime.errors import Corrupt
from rorqual_runtime.tensors import TensorPlane
from rorqual_runtime.waiting import uninterrupted


def prompt_first_order(pages: Sequence[int], num_prompt_pages: int) -> list[int]:
    """The same pages, ordered so that the prompt's come first and, if possible, lie side by side.

    Then one fetch writes them all in place. Prefers the shortest run that is long enough.
    """
    ordered = sorted(pages)
    runs: list[list[int]] = []
    for page in ordered:
        if runs and runs[-1][-1] + 1 == page:
            runs[-1].append(page)
        else:
            runs.append([page])
    fitting = [run for run in runs if len(run) >= num_prompt_pages]
    if not fitting:
        return ordered
    first = min(fitting, key=len)[:num_prompt_pages]
    taken = set(first)
    return first + [page for page in ordered if page not in taken]


def is_one_run(pages: Sequence[int]) -> bool:
    """Whether these pages lie side by side in ascending order."""
    return len(pages) > 0 and list(pages) == list(range(pages[0], pages[0] + len(pages)))


class PageFetcher:
    """Copies tickets of KV pages into the cache: in place where it can, else through one buffer.

    The buffer is as large as the largest prompt that needed it, and used by one fetch at a time.
    """

    def __init__(self, tensors: TensorPlane, cache: PagedKvCache) -> None:
        self._tensors = tensors
        self._cache = cache
        self._page_bytes = cache.layout.page_bytes
        self._on_host = cache.device.type == "cpu"
        self._host_pages = cache.pages.numpy() if self._on_host else None
        self._staging = np.empty(0, np.uint8)
        self._staging_free = asyncio.Lock()

    async def fetch(self, ticket: Any, pages: Sequence[int], *, timeout_s: float) -> None:
        """Fill `pages` with the ticket's bytes, page after page. Pages are ours alone until then.

        Raises: Corrupt when the ticket is not exactly these pages; StaleTicket, Unavailable,
            DeadlineExceeded. The pages then hold anything.
        """
        if tuple(ticket.shape) != (len(pages), self._page_bytes) or ticket.dtype != "uint8":
            raise Corrupt(
                f"KV of shape {tuple(ticket.shape)} {ticket.dtype} came for {len(pages)} pages of "
                f"{self._page_bytes} bytes"
            )
        if self._host_pages is not None and is_one_run(pages):
            target = self._host_pages[pages[0] : pages[-1] + 1]
            await self._tensors.fetch(ticket, into=target, timeout_s=timeout_s)
            return
        async with self._staging_free:
            staged = await self._fetch_staged(ticket, len(pages), timeout_s)
            # Pages must not be freed under the copy, so a cancellation waits for it.
            await uninterrupted(asyncio.to_thread(self._scatter, staged, list(pages)))

    async def _fetch_staged(self, ticket: Any, num_pages: int, timeout_s: float) -> np.ndarray:
        num_bytes = num_pages * self._page_bytes
        if self._staging.nbytes < num_bytes:
            self._staging = np.empty(num_bytes, np.uint8)
        return await self._tensors.fetch(
            ticket, into=self._staging[:num_bytes], timeout_s=timeout_s
        )

    def _scatter(self, staged: np.ndarray, pages: list[int]) -> None:
        rows = staged.reshape(len(pages), self._page_bytes)
        for row, page in zip(rows, pages, strict=True):
            if self._on_host:
                np.copyto(self._cache.page_bytes_view(page).numpy(), row)
            else:
                self._cache.page_bytes_view(page).copy_(torch.from_numpy(row))
