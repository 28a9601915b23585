"""Bars 9 and 10: what the prefix store and kept windows are worth."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rorqual_policy.step_cost import STUDY_COST
from rorqual_policy.window_hold import WindowHold
from rorqual_sim.prefix import NEVER, prefix_hits
from rorqual_sim.windows import replay_windows
from rorqual_sim.workloads import work_of

from bench.policy_bars.load import Load
from bench.policy_bars.registry import Figure, bar, least, most

_PAGE_TOKENS = 128
_LIFETIME_S = 3 * 86400.0
_PUBLISHED_S = 180.0
_FLAT_S = 881.0
_ADAPTIVE = WindowHold(tail_pages=2, tail_s=3600.0, other_s=180.0)
_STUDY_HELD = {"conversation": 0.856, "agentic": 0.925}


@bar(9)
def prefix_store(load: Load) -> Iterator[Figure]:
    trace = load.trace
    page_tokens = max(_PAGE_TOKENS, trace.block_tokens)
    hits = prefix_hits(trace, (_LIFETIME_S, NEVER), page_tokens).hit_tokens
    kept, ideal = hits.sum(axis=1) / trace.input_tokens.sum()
    yield most("token_hit_lost_at_3_days", ideal - kept, "share", 0.001, f"{kept:.4f} hit")
    work_s = [
        work_of(STUDY_COST, trace.input_tokens, np.minimum(hit, trace.input_tokens - 1)).sum()
        for hit in hits
    ]
    yield most("prefill_work_over_ideal", work_s[0] / work_s[1], "x", 1.01)


@bar(10)
def window_hold(load: Load) -> Iterator[Figure]:
    trace = load.trace
    page_tokens = max(_PAGE_TOKENS, trace.block_tokens)
    hits = prefix_hits(trace, (NEVER,), page_tokens)
    within = hits.window_gap_s[hits.is_matched] <= _PUBLISHED_S
    study = _STUDY_HELD.get(load.kind)
    flat = replay_windows(trace, WindowHold(0, _PUBLISHED_S, _PUBLISHED_S), page_tokens)
    if study is None or load.kind == "agentic":  # another selection of sessions than the study's
        yield Figure("windows_held_180s", flat.held, "share", note=f"study {study}")
    else:
        yield most("windows_held_180s_off_study", abs(flat.held - study), "share", 0.002)
    yield most("windows_held_two_ways", abs(flat.held - within.mean()), "share", 1e-9)
    uncached = trace.input_tokens.sum() - hits.hit_tokens[0].sum()
    yield most("replayed_share", flat.num_missed * 128 / uncached, "share", 0.0025)
    if load.kind == "agentic":
        longer = replay_windows(trace, WindowHold(0, _FLAT_S, _FLAT_S), page_tokens)
        adaptive = replay_windows(trace, _ADAPTIVE, page_tokens)
        yield least("windows_held_adaptive", adaptive.held, "share", 0.98)
        ratio = adaptive.state_seconds / longer.state_seconds
        yield most("state_seconds_over_flat_881s", ratio, "x", 0.5, f"flat holds {longer.held:.3f}")
