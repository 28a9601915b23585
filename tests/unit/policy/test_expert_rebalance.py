"""Next tables: bounded, complete, in their nodes; and what they fetch from where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.expert_moves import MoveParams
from rorqual_policy.expert_placement import num_changes, place_in_nodes
from rorqual_policy.expert_rebalance import (
    RebalanceParams,
    decide_rebalance,
    is_within_nodes,
    plan_fetches,
)

COUNTS = st.lists(st.integers(0, 5000), min_size=24, max_size=24)


@given(COUNTS, COUNTS, st.integers(1, 2), st.integers(1, 8))
def test_a_next_table_is_within_its_bounds(
    recent: list[int], older: list[int], num_nodes: int, max_changes: int
) -> None:
    before = place_in_nodes([1.0] * 24, num_nodes, 4 // num_nodes, 2)
    params = RebalanceParams(MoveParams(max_changes), num_nodes)
    found = decide_rebalance([recent, older], before, params)
    assert found.num_changes == num_changes(before, found.cards) <= max_changes
    assert {expert for held in found.cards for expert in held} == set(range(24))
    assert is_within_nodes(found.cards, num_nodes)
    assert found.reason == (
        "few_tokens" if sum(recent) < 24 * 16 else "gain" if found.num_changes else "no_gain"
    )
    for fetch in plan_fetches(before, found.cards):
        assert before[fetch.source][fetch.source_slot] == fetch.expert
        assert found.cards[fetch.target][fetch.target_slot] == fetch.expert
    assert len(plan_fetches(before, found.cards)) == found.num_changes


def test_a_heavy_expert_gets_a_second_host() -> None:
    cards = ((0, 1, 2, 6), (3, 4, 5, 6))
    found = decide_rebalance([[4000, 10, 10, 10, 10, 10, 10]], cards)
    assert found.reason == "gain" and all(0 in held for held in found.cards)


def test_hosts_give_in_turn() -> None:
    before = ((0, 1), (0, 2), (3, 4), (5, 6))
    after = ((0, 1), (0, 2), (0, 4), (5, 0))
    assert [(f.source, f.target) for f in plan_fetches(before, after)] == [(0, 2), (1, 3)]
    with pytest.raises(ValueError, match="as many slots"):
        plan_fetches(before, before[:3])
    with pytest.raises(ValueError, match="no card held expert 9"):
        plan_fetches(before, ((9, 1), *before[1:]))


def test_nodes_are_apart_or_not() -> None:
    assert is_within_nodes(((0,), (0, 1), (2,), (2, 3)), 2)
    assert not is_within_nodes(((0,), (0, 1), (1,), (2, 3)), 2)
    assert not is_within_nodes(((0,), (1,), (2,)), 2)
