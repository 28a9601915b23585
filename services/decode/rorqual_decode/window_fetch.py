"""The window state behind a prompt, from the tensor plane into a slot of our own."""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_runtime.errors import Corrupt
from rorqual_runtime.tensors import TensorPlane
from rorqual_runtime.waiting import uninterrupted


class WindowFetcher:
    """Copies tickets of window states into the cache."""

    def __init__(self, tensors: TensorPlane, cache: PagedKvCache, model: CausalModel) -> None:
        self._tensors = tensors
        self._cache = cache
        self._model = model

    async def fetch(self, ticket: Any, slot: int, num_tokens: int, *, timeout_s: float) -> None:
        """The window after num_tokens tokens. The slot is ours alone until then.

        Raises: Corrupt when the ticket is not exactly that; StaleTicket, Unavailable,
            DeadlineExceeded. The slot then holds anything.
        """
        layout = self._cache.layout.window
        assert layout is not None, "a slot without windows"
        if ticket is None:
            raise Corrupt("the prompt came without its window")
        if ticket.size_bytes != layout.snapshot_bytes:
            raise Corrupt(
                f"a window of {ticket.size_bytes} bytes came, this model's have "
                f"{layout.snapshot_bytes}"
            )
        data = await self._tensors.fetch(ticket, timeout_s=timeout_s)
        # The slot must not be freed under the copy, so a cancellation waits for it.
        await uninterrupted(
            asyncio.to_thread(
                self._model.load_window, self._cache, slot, num_tokens, torch.from_numpy(data)
            )
        )
