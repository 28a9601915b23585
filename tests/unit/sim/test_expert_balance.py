"""The compiled splits and moves are the policy's; the comparator is what its description says."""

from __future__ import annotations

import numpy as np
import pytest
from rorqual_policy.expert_moves import MoveParams, next_cards
from rorqual_policy.expert_placement import hosts_of, place_ring
from rorqual_policy.expert_split import DEFAULT_SPLIT, SplitParams, split_tokens
from rorqual_sim.expert_balance import (
    SplitMode,
    Table,
    even_load,
    greedy_placer,
    moved_cards,
    moving_placer,
    ring_placer,
    simulate_experts,
)
from rorqual_sim.expert_eplb import place_greedily
from rorqual_sim.expert_load import DECODE_STEP, ExpertTraffic, draw_layer

LAYER = draw_layer(ExpertTraffic(num_experts=64), DECODE_STEP, 40, 2, seed=5)
CARDS, REDUNDANT = 16, 1


@pytest.mark.parametrize("params", [DEFAULT_SPLIT, SplitParams(3, 1.0, 0.0)])
@pytest.mark.parametrize("place", [place_ring, place_greedily])
def test_compiled_split_is_the_specification(place: object, params: SplitParams) -> None:
    for window in range(6, 40, 6):
        cards = place(LAYER.windows[window - 6].tolist(), CARDS, REDUNDANT)  # type: ignore[operator]
        counts = LAYER.steps[window, 0]
        split, load = Table.of(64, cards).split(counts, params)
        plain = split_tokens(counts.astype(int).tolist(), *hosts_of(64, cards), CARDS, params)
        assert split.tolist() == list(plain)
        assert load.sum() == pytest.approx(counts.sum())


def test_compiled_moves_are_the_specification() -> None:
    params = MoveParams(num_hot=2)
    cards = place_ring(LAYER.windows[0].tolist(), CARDS, REDUNDANT)
    for window in (10, 20, 39):
        samples = LAYER.windows[[window, window - 6]].tolist()
        compiled = moved_cards(samples, cards, params)
        assert compiled == next_cards(samples, cards, params)
        assert compiled != cards
        cards = compiled


def test_greedy_comparator_gives_replicas_to_the_heaviest_and_fills_the_lightest_card() -> None:
    # Expert 0 gets both spare slots (90, then 45 a replica, are more than 40): parts 40 30 30 30 20
    # 20. A card of three slots ends with two replicas of it.
    cards = place_greedily([90, 40, 20, 20], 2, 1)
    assert cards == ((1, 0, 3), (0, 0, 2))
    assert even_load(np.array([90.0, 40, 20, 20]), cards).tolist() == [90, 80]


def test_ours_is_more_even_than_the_comparator_and_keeps_to_its_moves() -> None:
    def run(placer: object, mode: SplitMode) -> tuple[float, float]:
        balance = simulate_experts(
            LAYER,
            placer,
            mode,
            refresh_s=60.0,
            warm_s=60.0,  # type: ignore[arg-type]
        )
        assert np.all(balance.ratios >= 1.0)
        return balance.mean, float(balance.changes.max())

    rival, _ = run(greedy_placer(CARDS, REDUNDANT), SplitMode.EVEN)
    ring, _ = run(ring_placer(CARDS, REDUNDANT), SplitMode.COUNTS)
    moving, most_moved = run(moving_placer(CARDS, REDUNDANT), SplitMode.COUNTS)
    recent, _ = run(ring_placer(CARDS, REDUNDANT), SplitMode.RECENT)
    assert ring < recent < rival
    assert moving < rival
    assert most_moved <= 8


def test_a_run_repeats_itself() -> None:
    again = draw_layer(ExpertTraffic(num_experts=64), DECODE_STEP, 40, 2, seed=5)
    assert np.array_equal(again.steps, LAYER.steps)
