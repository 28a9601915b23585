"""First use of every kernel before the first job, so that none of them pays for compilation."""

from __future__ import annotations

import numpy as np
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_policy.blocks import BLOCK_TOKENS

_CHUNKS = ((1, 0), (40, 0), (BLOCK_TOKENS, 0), (BLOCK_TOKENS + 40, BLOCK_TOKENS))


def warm_up(model: CausalModel, cache: PagedKvCache) -> None:
    """Run chunks of a few sizes and positions, alone and together, on scratch pages. Blocks."""
    num_pages = 3
    if cache.num_free < num_pages * len(_CHUNKS):
        return
    with torch.inference_mode(), cache.allocate(num_pages * len(_CHUNKS)) as lease:
        chunks = [
            SequenceChunk(
                np.zeros(num_tokens, np.int32),
                start,
                lease.pages[index * num_pages : (index + 1) * num_pages],
                True,
            )
            for index, (num_tokens, start) in enumerate(_CHUNKS)
        ]
        for page in lease.pages:
            cache.page_bytes_view(page).zero_()
        for chunk in chunks:
            model.forward([chunk], cache)
        model.forward(chunks, cache)
