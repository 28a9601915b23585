"""Engine and reference on the same small random model, for tests that compare them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rorqual_engine.batch import ImageRows, SequenceChunk
from rorqual_engine.kv import PagedKvCache, PageLease
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.deepseek.vocabulary import STORED
from rorqual_engine.prepare.random_v41 import TINY_V41, random_tensors, write_random_v41
from safetensors.torch import save_file

from tests.support.deepseek_reference import TextReference
from tests.support.engine_runs import cut

SMALL: dict[str, Any] = {
    **TINY_V41,
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 24,
    "sliding_window": 16,
    "compress_ratios": [0, 2, 2, 1, 1, 1],
    "kv_source_layers": [1, 3],
    "index_source_layers": [1, 3, 5],
    "candidate_source_layer": 3,
    "candidate_blocks": 4,
    "candidate_block_entries": 4,
    "late_start_layer": 3,
    "index_head_dim": 32,
    "index_topk": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "image_token_id": 300,
    "vision_config": None,
    "dspark_config": None,
}
"""A fraction of the small model of the design, and a window that ends within any test's prompt."""

NUM_CLASSES = 90
"""Of tokens, where there is Engram."""


@dataclass
class Pair:
    """Both read the same weights: the engine in fp32, the reference in fp64."""

    reference: TextReference
    model: DeepseekModel

    @contextmanager
    def start(self, num_tokens: int) -> Iterator[Running]:
        """A sequence with pages and a window slot, in a cache of its own that is full of NaN."""
        cache = self.model.new_cache(self.model.kv_layout.num_pages(num_tokens))
        with cache.allocate(cache.num_free) as lease:
            running = Running(self.model, cache, lease)
            cache.pages.fill_(255)
            running.forget_window()
            yield running

    @property
    def image_id(self) -> int:
        """The id of every row of an image."""
        found = self.reference.shape.image_id
        assert found is not None
        return found


def make_pair(directory: Path, seed: int, changes: Mapping[str, Any]) -> Pair:
    """A model of SMALL with some of its fields changed."""
    fields = {**SMALL, **changes}
    write_random_v41(directory, seed=seed, changes=fields)
    token_map = torch.arange(fields["vocab_size"], dtype=torch.int32) % NUM_CLASSES
    save_file({STORED: token_map}, directory / "classes.safetensors")
    model = load_model(directory, dtype="float32")
    assert isinstance(model, DeepseekModel)
    tensors = random_tensors(fields, seed)
    return Pair(TextReference(fields, tensors, token_map=token_map.tolist()), model)


@dataclass
class Prompt:
    """ids, of which the rows in `images` take these vectors instead of their embedding."""

    ids: list[int]
    images: dict[int, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def random(cls, num_tokens: int, seed: int = 1) -> Prompt:
        return cls(np.random.default_rng(seed).integers(2, 300, num_tokens).tolist())

    def rows(self, start: int, end: int) -> ImageRows | None:
        """What a chunk of these positions is given."""
        within = [row for row in sorted(self.images) if start <= row < end]
        if not within:
            return None
        values = torch.stack([self.images[row] for row in within]).float()
        return ImageRows(np.array(within) - start, values)


@dataclass
class Running:
    """One sequence in the engine."""

    model: DeepseekModel
    cache: PagedKvCache
    lease: PageLease

    def forget_window(self) -> None:
        """What a slot held before; nothing of it may be read."""
        self.cache.windows.fill_(255)

    def feed(
        self,
        prompt: Prompt,
        sizes: Sequence[int],
        *,
        start: int = 0,
        end: int | None = None,
        defers: bool = False,
        floor: int = 0,
        num_stored: int = 0,
    ) -> dict[int, torch.Tensor]:
        """Logits by position: of every chunk's last row, or the last of all when layers wait."""
        end = len(prompt.ids) if end is None else end
        found = {}
        for first, last in cut(end - start, sizes):
            begin, until = start + first, start + last
            chunk = SequenceChunk(
                prompt.ids[begin:until],
                begin,
                self.lease.pages,
                not defers or until == end,
                self.lease.window,
                floor,
                num_stored,
                defers,
                prompt.rows(begin, until),
                prompt.ids[max(0, begin - 3) : begin] if begin == floor else (),
            )
            logits = self.model.forward([chunk], self.cache)
            if chunk.wants_logits:
                found[until - 1] = logits[0]
        return found
