"""What the engine asks of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import KvLayout, PagedKvCache


class CausalModel(ABC):
    """A decoder that predicts the next token from paged KV."""

    fingerprint: str
    """Equal only for equal weights, dtype and KV layout: whose KV may be mixed."""
    vocab_size: int
    """Width of the logits; at least the tokenizer's size."""
    eos_token_ids: tuple[int, ...]
    max_context_tokens: int
    kv_layout: KvLayout
    device: torch.device
    dtype: torch.dtype

    @abstractmethod
    def forward(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> torch.Tensor:
        """Runs the chunks, writes their KV, returns fp32 logits [num wanting, vocab_size].

        Logits come in the order of the chunks that want them. A row's result depends only on its
        own sequence, never on chunking or on what else is in the batch (bf16 on CPU; elsewhere
        up to rounding). Call from one thread at a time. Raises: BadChunk.
        """

    def new_cache(self, num_pages: int) -> PagedKvCache:
        """A pool of pages this model can run with."""
        return PagedKvCache(self.kv_layout, num_pages, self.device)
