"""First use of every kernel before the first request, so that none of them pays for compilation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.grammar import new_bitmask
from rorqual_engine.kv import PAGE_TOKENS, PagedKvCache, PageLease
from rorqual_engine.models.base import CausalModel
from rorqual_engine.sampling import SamplingState, sample
from rorqual_policy.draft_budget import StepProfile, checked_profile

_ROWS = (1, 2, 8)
_PROFILE_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PROFILE_RUNS = 3
_STATES = (
    SamplingState(),
    SamplingState(temperature=1.0, top_p=0.9, top_k=20, min_p=0.01, num_logprobs=2),
)


def warm_up(model: CausalModel, cache: PagedKvCache) -> None:
    """Run steps of a few sizes, and each way to sample, on scratch pages. Blocks."""
    with torch.inference_mode(), _scratch(cache) as leases:
        for num_rows in _ROWS:
            logits = model.forward(_chunks(leases, num_rows), cache)
        bitmask = new_bitmask(len(_STATES), logits.shape[1])
        bitmask[0, 0] = 1
        rows = logits[: len(_STATES)]
        sample(rows, _STATES[: len(rows)])
        sample(rows, _STATES[: len(rows)], bitmask[: len(rows)])


def measure_steps(model: CausalModel, cache: PagedKvCache, most_rows: int) -> StepProfile:
    """How long steps of up to most_rows rows, or a little more, take here. Blocks for about a
    hundred steps.

    Of several runs the shortest counts; and a step counts for no longer than a larger one, for then
    somebody else was busy. Context is short here: where it is long, a row costs more.
    """
    with torch.inference_mode(), _scratch(cache) as leases:
        largest = min(2 * most_rows - 1, len(leases) * PAGE_TOKENS)
        counts = [rows for rows in _PROFILE_ROWS if rows <= largest]
        times = [
            min(_step_time_s(model, cache, _chunks(leases, rows)) for _ in range(_PROFILE_RUNS))
            for rows in counts
        ]
    shortest = [min(times[i:]) for i in range(len(times))]
    return checked_profile(StepProfile(tuple(counts), tuple(shortest)))


def _step_time_s(model: CausalModel, cache: PagedKvCache, chunks: list[SequenceChunk]) -> float:
    began_s = time.perf_counter()
    model.forward(chunks, cache).argmax(-1).cpu()
    return time.perf_counter() - began_s


@contextmanager
def _scratch(cache: PagedKvCache) -> Iterator[list[PageLease]]:
    """A page for each of a few sequences, as many as there are."""
    with ExitStack() as stack:
        leases: list[PageLease] = []
        while len(leases) < max(_ROWS) and cache.num_free and cache.can_open:
            leases.append(stack.enter_context(cache.allocate(1)))
        yield leases


def _chunks(leases: list[PageLease], num_rows: int) -> list[SequenceChunk]:
    """So many rows that want logits, shared evenly by up to as many sequences."""
    num_each = -(-num_rows // len(leases))
    return [
        SequenceChunk((0,) * num_each, 0, lease.pages, True, lease.window, all_logits=num_each > 1)
        for lease in leases[: -(-num_rows // num_each)]
    ]
