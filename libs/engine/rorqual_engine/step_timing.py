"""How long steps of a model take: prefill chunks and decode batches on scratch pages, timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import torch
from rorqual_policy.draft_budget import StepProfile, checked_profile
from rorqual_policy.step_fit import StepSample, decode_features, prefill_features

from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import PAGE_TOKENS, PagedKvCache, PageLease
from rorqual_engine.models.base import CausalModel
from rorqual_engine.sampling import SamplingState, sample

PREFILL_POINTS = tuple(
    (num_tokens, context_tokens)
    for context_tokens in (0, 1024, 4096, 16384)
    for num_tokens in (8, 64, 128, 256, 512)
)
"""(new tokens, context tokens) of one step."""
FEW_PREFILL_POINTS = ((16, 0), (128, 0), (384, 0), (128, 1024), (16, 2048))
"""Enough for a first estimate: 0.6 s a round for 135M parameters on two cores."""
DECODE_POINTS = tuple(
    (num_running, context_tokens)
    for context_tokens in (64, 512, 2048, 8192)
    for num_running in (1, 2, 4, 8, 16, 32)
)
"""(requests, context tokens of each) of one step."""
VERIFY_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Rows of steps that check guesses, a few sequences sharing them."""
_VERIFY_SEQUENCES = 8
MOST_DECODE_TOKENS = 32_768
"""Of a decode point: what is touched here is memory that stays touched."""
Timed = tuple[tuple[int, int], float]
"""A point, and the seconds of its step."""

_MOST_OVER_OWN = 1.25
"""On an idle machine a CPU step takes less than this times the processor time of its main thread;
more is time in which other processes ran. Source: SmolLM2-135M on two cores, chunks of 512 tokens
beside eight busy processes: 3 to 7 s by the wall, 0.30 to 0.33 s by the thread, as when idle."""
_MOST_OVER_BUDGET = 3.0


@dataclass(frozen=True)
class Timing:
    """How long to measure."""

    budget_s: float
    """No further round over the points begins, and none goes on, after this; the first round goes
    on for three times as long."""
    max_rounds: int = 9
    clock: Callable[[], float] = time.perf_counter
    own_clock: Callable[[], float] | None = time.thread_time
    """Of the processor time of the calling thread, for models of one process on the CPU; None: not
    looked at."""

    def of(self, model: CausalModel) -> Timing:
        """The same for this model: a step that waits for a device or for other processes takes
        longer than its thread computes."""
        is_own = model.device.type == "cpu" and model.num_ranks == 1
        return self if is_own else replace(self, own_clock=None)


def time_prefill(
    model: CausalModel,
    cache: PagedKvCache,
    timing: Timing,
    points: Sequence[tuple[int, int]] = PREFILL_POINTS,
) -> list[StepSample]:
    """One sample a point of `prefill_steps`. Blocks."""
    found = prefill_steps(model, cache, timing, points)
    return [StepSample(prefill_features([point]), took_s) for point, took_s in found]


def prefill_steps(
    model: CausalModel, cache: PagedKvCache, timing: Timing, points: Sequence[tuple[int, int]]
) -> list[Timed]:
    """Each point that fits the model's context and the free pages, and that time was left for.
    Blocks."""
    limit = min(model.max_context_tokens, cache.num_free * PAGE_TOKENS)
    fitting = [point for point in points if sum(point) <= limit]
    if not fitting or not cache.can_open:
        return []
    num_pages = max(-(-sum(point) // PAGE_TOKENS) for point in fitting)
    with torch.inference_mode(), cache.allocate(num_pages) as lease:
        _clear(cache, lease)

        def step(point: tuple[int, int]) -> None:
            num_tokens, context_tokens = point
            token_ids = np.zeros(num_tokens, np.int32)
            chunk = SequenceChunk(token_ids, context_tokens, lease.pages, True, lease.window)
            chunk.defers_late = True
            model.forward([chunk], cache).cpu()

        return _timed(fitting, step, timing.of(model))


def time_decode(
    model: CausalModel,
    cache: PagedKvCache,
    timing: Timing,
    points: Sequence[tuple[int, int]] = DECODE_POINTS,
) -> list[StepSample]:
    """One sample a point of `decode_steps`. Blocks."""
    return [
        StepSample(decode_features(num, num * context_tokens), took_s)
        for (num, context_tokens), took_s in decode_steps(model, cache, timing, points)
    ]


def decode_steps(
    model: CausalModel,
    cache: PagedKvCache,
    timing: Timing,
    points: Sequence[tuple[int, int]],
    most_tokens: int = MOST_DECODE_TOKENS,
) -> list[Timed]:
    """Each point that fits into the free pages and into most_tokens of them; a step is a forward
    and a greedy choice. Blocks."""
    num_free = min(cache.num_free, most_tokens // PAGE_TOKENS)
    fitting = [
        (num_running, context_tokens)
        for num_running, context_tokens in points
        if context_tokens < model.max_context_tokens
        and num_running * (context_tokens // PAGE_TOKENS + 1) <= num_free
        and (not cache.num_windows or num_running <= cache.num_windows - cache.num_used_windows)
    ]
    return list(_time_batches(model, cache, fitting, timing))


def time_verify(model: CausalModel, cache: PagedKvCache, timing: Timing) -> StepProfile:
    """Steps by rows, each row with a choice, as far as free pages and time go; without context.
    Blocks.

    A step counts for no longer than a larger one: then somebody else was busy.
    """
    with torch.inference_mode(), ExitStack() as stack:
        leases: list[PageLease] = []
        while len(leases) < _VERIFY_SEQUENCES and cache.num_free and cache.can_open:
            leases.append(stack.enter_context(cache.allocate(1)))
            _clear(cache, leases[-1])

        def step(point: tuple[int, int]) -> None:
            num_sequences, num_each = point
            chunks = [
                SequenceChunk(
                    (0,) * num_each, 0, lease.pages, True, lease.window, all_logits=num_each > 1
                )
                for lease in leases[:num_sequences]
            ]
            num_rows = num_sequences * num_each
            sample(model.forward(chunks, cache), [SamplingState()] * num_rows)

        largest = min(PAGE_TOKENS, model.max_context_tokens) * len(leases)
        shared = [(min(rows, len(leases)), rows) for rows in VERIFY_ROWS if rows <= largest]
        points = [(num, rows // num) for num, rows in shared]
        found = _timed(points, step, timing.of(model))
    times = [took_s for _, took_s in found]
    return checked_profile(
        StepProfile(
            tuple(num * each for (num, each), _ in found),
            tuple(min(times[place:]) for place in range(len(times))),
        )
    )


def _time_batches(
    model: CausalModel,
    cache: PagedKvCache,
    points: Sequence[tuple[int, int]],
    timing: Timing,
) -> Iterator[Timed]:
    if not points:
        return
    most = max(num for num, _ in points)
    pages_of = [
        max((tokens // PAGE_TOKENS + 1 for num, tokens in points if num > place), default=0)
        for place in range(most)
    ]
    with torch.inference_mode(), ExitStack() as stack:
        leases = [stack.enter_context(cache.allocate(num_pages)) for num_pages in pages_of]
        for lease in leases:
            _clear(cache, lease)

        def step(point: tuple[int, int]) -> None:
            num_running, context_tokens = point
            chunks = [
                SequenceChunk((0,), context_tokens, lease.pages, True, lease.window)
                for lease in leases[:num_running]
            ]
            sample(model.forward(chunks, cache), [SamplingState()] * num_running)

        yield from _timed(points, step, timing.of(model))


def _clear(cache: PagedKvCache, lease: PageLease) -> None:
    for page in lease.pages:
        cache.page_bytes_view(page).zero_()
    if lease.window is not None:
        cache.windows[lease.window].zero_()


def _timed(
    points: Sequence[tuple[int, int]], step: Callable[[tuple[int, int]], None], timing: Timing
) -> list[Timed]:
    """Rounds over all points while the budget lasts; of each point the mean of its faster half,
    since whatever disturbs a step makes it longer. Points that were never reached are left out."""
    began_s = timing.clock()
    took_s: dict[tuple[int, int], list[float]] = {point: [] for point in points}
    for number in range(timing.max_rounds):
        limit_s = timing.budget_s * (1.0 if number else _MOST_OVER_BUDGET)
        for point in points:
            if timing.clock() - began_s > limit_s:
                break
            took_s[point].append(_step_s(point, step, timing))
    return [(point, _faster_half(times)) for point, times in took_s.items() if times]


def _step_s(
    point: tuple[int, int], step: Callable[[tuple[int, int]], None], timing: Timing
) -> float:
    began_s = timing.clock()
    own_began_s = timing.own_clock() if timing.own_clock else 0.0
    step(point)
    own_s = timing.own_clock() - own_began_s if timing.own_clock else inf
    return min(timing.clock() - began_s, _MOST_OVER_OWN * own_s)


def _faster_half(times: Sequence[float]) -> float:
    kept = sorted(times)[: max(1, len(times) // 2)]
    return sum(kept) / len(kept)
