"""Bars 11 to 13: even cards in an expert-parallel group, and what deciding costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from rorqual_policy.expert_moves import DEFAULT_MOVES
from rorqual_policy.expert_placement import place_ring
from rorqual_policy.expert_split import DEFAULT_SPLIT, SplitParams
from rorqual_sim.expert_balance import (
    Balance,
    Placer,
    SplitMode,
    Table,
    greedy_placer,
    moved_cards,
    moving_placer,
    repeat_split,
    ring_placer,
    simulate_experts,
)
from rorqual_sim.expert_load import (
    DECODE_STEP,
    PREFILL_STEP,
    ExpertTraffic,
    LayerLoad,
    StepShape,
    draw_layer,
)

from bench.policy_bars.load import Load
from bench.policy_bars.registry import Figure, bar, most

_LAYER_SEEDS = (1, 2)
_WARM_S, _COUNTED_S = 600.0, 3600.0
_STEPS_PER_WINDOW = 2
_DECODE, _PREFILL = (64, 1), (8, 4)
"""Cards, and redundant experts on each."""
_CONVERGED = SplitParams(max_sweeps=20_000, relaxation=1.5, tolerance=0.0)


@bar(11, needs_trace=False)
def prefill_balance(_load: Load | None) -> Iterator[Figure]:
    ring = _balance(PREFILL_STEP, ring_placer(*_PREFILL, 300.0), SplitMode.COUNTS, 600.0)
    yield most("expert_prefill_mean_600s", ring.mean, "x", 1.005)
    yield most("expert_prefill_p99_600s", ring.p99, "x", 1.02)
    fresh = _balance(PREFILL_STEP, ring_placer(*_PREFILL), SplitMode.COUNTS, 60.0)
    yield most("expert_prefill_mean_60s", fresh.mean, "x", 1.005)
    yield most("expert_prefill_p99_60s", fresh.p99, "x", 1.02)
    rival = _balance(PREFILL_STEP, greedy_placer(*_PREFILL), SplitMode.EVEN, 60.0)
    yield Figure("expert_prefill_mean_eplb_60s", rival.mean, "x", note="comparator, even split")


@bar(12, needs_trace=False)
def decode_balance(_load: Load | None) -> Iterator[Figure]:
    moving = _balance(DECODE_STEP, moving_placer(*_DECODE), SplitMode.COUNTS, 60.0)
    yield most("expert_decode_mean_moving", moving.mean, "x", 1.04)
    yield most("expert_decode_p99_moving", moving.p99, "x", 1.15)
    yield most("expert_decode_most_slots_moved", float(moving.changes.max()), "slots", 8.0)
    free = _balance(DECODE_STEP, ring_placer(*_DECODE), SplitMode.COUNTS, 60.0)
    yield most("expert_decode_mean_free", free.mean, "x", 1.02)
    recent = _balance(DECODE_STEP, ring_placer(*_DECODE), SplitMode.RECENT, 60.0)
    yield most("expert_decode_mean_sync_free", recent.mean, "x", 1.085)
    stale = _balance(DECODE_STEP, ring_placer(*_DECODE, 300.0), SplitMode.COUNTS, 600.0)
    yield most("expert_decode_mean_stale_600s", stale.mean, "x", 1.09)
    for refresh_s in (60.0, 600.0):
        rival = _balance(DECODE_STEP, greedy_placer(*_DECODE, refresh_s), SplitMode.EVEN, refresh_s)
        name = f"expert_decode_mean_eplb_{refresh_s:.0f}s"
        moved = f"comparator, even split, moves {rival.changes.mean():.0f} slots"
        yield Figure(name, rival.mean, "x", note=moved)


@bar(13, needs_trace=False)
def expert_speed(_load: Load | None) -> Iterator[Figure]:
    layer = _layers(DECODE_STEP)[0]
    weights = layer.windows[60:66].mean(0).tolist()
    older = layer.windows[30:36].mean(0).tolist()
    cards = place_ring(older, *_DECODE)
    table = Table.of(len(weights), cards)
    steps = layer.steps[60:160].reshape(-1, len(weights))
    repeat_split(steps[:1], table, DEFAULT_SPLIT)  # compiles
    split_s = _median_s(lambda: repeat_split(steps, table, DEFAULT_SPLIT)) / len(steps)
    yield most("expert_split", split_s * 1e6, "us", 50.0)
    yield most("expert_split_over_optimum", _over_optimum(layer), "x", 1.02)
    ring_s = _median_s(lambda: place_ring(weights, *_DECODE))
    yield most("expert_placement_ring", ring_s * 1e3, "ms", 5.0)
    moved_cards([weights, older], cards, DEFAULT_MOVES)  # compiles
    moves_s = _median_s(lambda: moved_cards([weights, older], cards, DEFAULT_MOVES))
    yield most("expert_placement_moving", moves_s * 1e3, "ms", 5.0)


@cache
def _layers(shape: StepShape) -> list[LayerLoad]:
    num_windows = round((_WARM_S + _COUNTED_S) / 10)
    traffic = ExpertTraffic()
    return [
        draw_layer(traffic, shape, num_windows, _STEPS_PER_WINDOW, seed) for seed in _LAYER_SEEDS
    ]


def _balance(shape: StepShape, placer: Placer, mode: SplitMode, refresh_s: float) -> Balance:
    """Of both layers together."""
    parts = [
        simulate_experts(layer, placer, mode, refresh_s=refresh_s, warm_s=_WARM_S)
        for layer in _layers(shape)
    ]
    ratios, changes = ([getattr(p, name) for p in parts] for name in ("ratios", "changes"))
    return Balance(np.concatenate(ratios), np.concatenate(changes))


def _over_optimum(layer: LayerLoad) -> float:
    """Largest load over the least possible one, mean over steps on fresh rings."""
    ratios = []
    for window in range(60, len(layer.windows), 20):
        weights = layer.windows[window - 6 : window].mean(0).tolist()
        table = Table.of(len(weights), place_ring(weights, *_DECODE))
        counts = layer.steps[window, 0]
        least = table.split(counts, _CONVERGED)[1].max()
        ratios.append(table.split(counts, DEFAULT_SPLIT)[1].max() / least)
    return float(np.mean(ratios))


def _median_s(run: Callable[[], object]) -> float:
    """CPU seconds of one core; what else the machine does is not counted."""
    took = []
    for _ in range(15):
        begun = time.thread_time()
        run()
        took.append(time.thread_time() - begun)
    return float(np.median(took))
