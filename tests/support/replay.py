"""The bare engine with a prefix that is stored but whose window is gone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.models import CausalModel
from rorqual_policy.blocks import BLOCK_TOKENS


@torch.inference_mode()
def greedy_after_replay(
    model: CausalModel, token_ids: Sequence[int], num_blocks: int, num_new: int
) -> list[int]:
    """Greedy output where num_blocks blocks of the prompt come from an undisturbed run."""
    num_pages = model.kv_layout.num_pages(len(token_ids) + num_new)
    cache = model.new_cache(2 * num_pages)
    num_stored = num_blocks * BLOCK_TOKENS
    first = num_stored - model.num_replayed(num_stored)
    with cache.allocate(num_pages) as whole, cache.allocate(num_pages) as lease:
        model.forward([SequenceChunk(token_ids, 0, whole.pages, True, whole.window)], cache)
        for mine, theirs in zip(lease.pages[:num_blocks], whole.pages, strict=False):
            cache.pages[mine] = cache.pages[theirs]
        chunk = SequenceChunk(
            token_ids[first:], first, lease.pages, True, lease.window, first, num_stored, True
        )
        chunk.previous_ids = token_ids[max(0, first - model.num_previous_ids) : first]
        output: list[int] = []
        for position in range(len(token_ids), len(token_ids) + num_new):
            output.append(int(model.forward([chunk], cache)[0].argmax()))
            chunk = SequenceChunk(output[-1:], position, lease.pages, True, lease.window)
    return output
