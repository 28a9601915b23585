"""First use of every kernel before the first job, so that none of them pays for compilation."""

from __future__ import annotations

from contextlib import ExitStack

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
    with torch.inference_mode(), ExitStack() as stack:
        chunks = []
        for num_tokens, start in _CHUNKS:
            if not cache.can_open:
                break
            lease = stack.enter_context(cache.allocate(num_pages))
            for page in lease.pages:
                cache.page_bytes_view(page).zero_()
            if lease.window is not None:
                cache.windows[lease.window].zero_()
            token_ids = np.zeros(num_tokens, np.int32)
            chunk = SequenceChunk(token_ids, start, lease.pages, True, lease.window)
            chunk.defers_late = True
            chunks.append(chunk)
        for chunk in chunks:
            model.forward([chunk], cache)
        model.forward(chunks, cache)
