"""A prompt in the engine's hands, and the chunks it is run in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import PagedKvCache

from rorqual_prefill.image_rows import PromptImages
from rorqual_prefill.resume import PromptWindow


class WindowModel(Protocol):
    """The part of a model that snapshots need."""

    def save_window(self, cache: PagedKvCache, window: int, num_tokens: int) -> torch.Tensor: ...


@dataclass(eq=False, slots=True)
class Prompt:
    """One prompt in the engine's hands: tokens before num_done have their KV in `pages`.

    on_page(index) is called in the engine thread once page `index` of the prompt is final,
    on_progress(num_left) on the event loop when a chunk begins and when it is done, with the tokens
    that no step has begun.
    """

    prompt_id: str
    token_ids: np.ndarray
    pages: list[int]
    num_done: int
    arrival_s: float
    on_page: Callable[[int], None]
    on_progress: Callable[[int], None]
    last_chunk_started: asyncio.Future[None]
    logits: asyncio.Future[np.ndarray]
    exported: asyncio.Future[None]
    """Done once every page has gone through on_page, soon after the logits."""
    images: PromptImages | None = None
    window: PromptWindow | None = None
    is_withdrawn: bool = field(default=False, init=False)

    @property
    def num_remaining(self) -> int:
        """Tokens still to compute."""
        return len(self.token_ids) - self.num_done

    def cut(self, num_tokens: int) -> int:
        """Tokens of the next chunk, at most so many."""
        return self.window.cut(self.num_done, num_tokens) if self.window else num_tokens

    def chunk(self, num_tokens: int) -> SequenceChunk:
        """The next so many tokens to run."""
        start, end = self.num_done, self.num_done + num_tokens
        chunk = SequenceChunk(
            token_ids=self.token_ids[start:end],
            start=start,
            pages=self.pages,
            wants_logits=end == len(self.token_ids),
            embeddings=self.images.within(start, end) if self.images else None,
        )
        if self.window is not None:
            self.window.prepare(chunk)
        return chunk

    def save_window(self, model: WindowModel, cache: PagedKvCache, num_tokens: int) -> None:
        """Take what is wanted of the window after a chunk of so many tokens has run."""
        if self.window is None:
            return
        end = self.num_done + num_tokens
        is_last = end == len(self.token_ids)
        if not is_last and end != self.window.keep_at:
            return
        snapshot = model.save_window(cache, self.window.slot, end).numpy()
        if is_last:
            self.window.at_end = snapshot
        if end == self.window.keep_at:
            self.window.kept = snapshot
