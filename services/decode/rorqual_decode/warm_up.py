"""First use of every kernel before the first request, so that none of them pays for compilation."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.grammar import new_bitmask
from rorqual_engine.kv import PagedKvCache, PageLease
from rorqual_engine.models.base import CausalModel
from rorqual_engine.sampling import SamplingState, sample

_ROWS = (1, 2, 8)
_STATES = (
    SamplingState(),
    SamplingState(temperature=1.0, top_p=0.9, top_k=20, min_p=0.01, num_logprobs=2),
)


def warm_up(model: CausalModel, cache: PagedKvCache) -> None:
    """Run steps of a few sizes, and each way to sample, on scratch pages. Blocks."""
    with torch.inference_mode(), ExitStack() as stack:
        leases: list[PageLease] = []
        while len(leases) < max(_ROWS) and cache.num_free and cache.can_open:
            leases.append(stack.enter_context(cache.allocate(1)))
        chunks = [SequenceChunk((0,), 0, lease.pages, True, lease.window) for lease in leases]
        for num_rows in _ROWS:
            logits = model.forward(chunks[:num_rows], cache)
        bitmask = new_bitmask(len(_STATES), logits.shape[1])
        bitmask[0, 0] = 1
        rows = logits[: len(_STATES)]
        sample(rows, _STATES[: len(rows)])
        sample(rows, _STATES[: len(rows)], bitmask[: len(rows)])
