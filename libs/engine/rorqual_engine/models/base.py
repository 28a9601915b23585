"""What the engine asks of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import KvLayout, PagedKvCache
from rorqual_engine.models.drafts import Anchor, Drafts, Sampler, greedy
from rorqual_engine.parallel.load import ExpertLoad


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
    num_previous_ids: int = 0
    """Ids before its start that the first chunk of a replay must know."""
    expert_loads: Sequence[ExpertLoad] = ()
    """What the experts of every layer were asked for lately; empty where there are none, or where
    nobody looks (see `expert_balance`)."""
    num_ranks: int = 1
    """Processes that make a step together."""
    num_drafts: int = 0
    """Tokens that the draft module guesses at once; 0 = none is loaded."""

    @abstractmethod
    def forward(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> torch.Tensor:
        """Runs the chunks, writes their KV, returns logits [num wanting, vocab_size].

        Logits come in the order of the chunks that want them, in fp32 or, on the CPU, in bf16
        where the head gives no more than that. A row's result depends only on its
        own sequence, never on chunking or on what else is in the batch (bf16 on CPU; elsewhere
        up to rounding). Call from one thread at a time. Raises: BadChunk.
        """

    def new_cache(self, num_pages: int, *, num_windows: int | None = None) -> PagedKvCache:
        """A pool of pages, and of window slots where the model has windows."""
        return PagedKvCache(self.kv_layout, num_pages, self.device, num_windows=num_windows)

    def num_replayed(self, num_stored: int) -> int:
        """Tokens before a stored prefix's end that must be run again when the window state at that
        end is gone. Equal to num_stored: such a prefix is of no use without its window."""
        return 0

    def save_window(self, cache: PagedKvCache, window: int, num_tokens: int) -> torch.Tensor:
        """Snapshot of a slot after num_tokens tokens: uint8 [snapshot_bytes], on the CPU."""
        raise NotImplementedError("this model has no windows")

    def load_window(
        self, cache: PagedKvCache, window: int, num_tokens: int, snapshot: torch.Tensor
    ) -> None:
        """Puts a snapshot of exactly num_tokens tokens into a slot."""
        raise NotImplementedError("this model has no windows")

    def draft(
        self, anchors: Sequence[Anchor], cache: PagedKvCache, sampler: Sampler = greedy
    ) -> Drafts:
        """A block of guesses behind the last token of each sequence; at least one."""
        raise NotImplementedError("this model has no draft module")
