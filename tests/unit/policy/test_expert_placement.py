"""Tables of experts: complete, within their slots, with replicas where they help."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.expert_moves import MoveParams, next_cards
from rorqual_policy.expert_placement import (
    Cards,
    hosts_of,
    num_changes,
    place_in_nodes,
    place_ring,
)
from rorqual_policy.expert_split import split_tokens


def assert_complete(num_experts: int, cards: Cards) -> None:
    assert {expert for experts in cards for expert in experts} == set(range(num_experts))
    assert all(len(set(experts)) == len(experts) for experts in cards)


@st.composite
def weighted_groups(draw: st.DrawFn) -> tuple[list[int], int, int]:
    num_cards = draw(st.integers(2, 9))
    num_experts = draw(st.integers(num_cards, 40))
    weights = draw(st.lists(st.integers(0, 500), min_size=num_experts, max_size=num_experts))
    return weights, num_cards, draw(st.integers(0, num_experts // num_cards))


@given(weighted_groups())
def test_ring_is_complete_and_doubles_exactly_the_heaviest(
    group: tuple[list[int], int, int],
) -> None:
    weights, num_cards, num_redundant = group
    cards = place_ring(weights, num_cards, num_redundant)
    assert_complete(len(weights), cards)
    sizes = [len(experts) for experts in cards]
    assert max(sizes) - min(sizes) <= 1
    first = hosts_of(len(weights), cards).first
    doubled = [e for e in range(len(weights)) if first[e + 1] - first[e] == 2]
    assert len(doubled) == num_cards * num_redundant
    singles = [weights[e] for e in set(range(len(weights))) - set(doubled)]
    assert min((weights[e] for e in doubled), default=0) >= max(singles, default=0) or not doubled


@given(st.integers(3, 40))
def test_first_replicas_make_one_cycle_through_all_cards(num_cards: int) -> None:
    cards = place_ring(list(range(num_cards * 3)), num_cards, 1)
    table = hosts_of(num_cards * 3, cards)
    links = [table.hosts[table.first[e] : table.first[e + 1]] for e in table.order]
    reached = {0}
    for _ in range(num_cards):
        reached |= {card for link in links if reached & {*link} for card in link}
    assert reached == set(range(num_cards))
    assert all(sum(card in link for link in links) == 2 for card in range(num_cards))


@given(weighted_groups(), st.lists(st.integers(0, 500), min_size=40, max_size=40))
def test_moves_keep_the_table_complete_and_within_the_limit(
    group: tuple[list[int], int, int], later: list[int]
) -> None:
    weights, num_cards, num_redundant = group
    before = place_ring(weights, num_cards, num_redundant)
    after = next_cards([later[: len(weights)], weights], before, MoveParams(max_changes=3))
    assert_complete(len(weights), after)
    assert num_changes(before, after) <= 3
    assert [len(experts) for experts in after] == [len(experts) for experts in before]


def test_moves_relieve_the_card_of_an_expert_that_became_popular() -> None:
    weights = [10] * 24
    before = place_ring(weights, 4, 1)
    first = hosts_of(24, before).first
    popular = next(e for e in range(24) if first[e + 1] - first[e] == 1)
    weights[popular] = 100
    after = next_cards([weights], before)

    def largest(cards: Cards) -> int:
        table = hosts_of(24, cards)
        split = split_tokens(weights, *table, 4)
        return max(
            sum(tokens for tokens, host in zip(split, table.hosts, strict=True) if host == card)
            for card in range(4)
        )

    assert largest(before) > 100
    assert largest(after) <= 1.02 * sum(weights) / 4


def test_moves_change_nothing_when_all_is_even() -> None:
    cards = place_ring([10] * 24, 4, 1)
    assert next_cards([[10] * 24], cards) == cards
    assert next_cards([[0] * 24], cards) == cards


@given(st.integers(1, 4), st.integers(2, 5), st.integers(0, 1))
def test_replicas_of_an_expert_share_a_node(
    num_nodes: int, cards_per_node: int, num_redundant: int
) -> None:
    num_experts = num_nodes * cards_per_node * 3
    weights = [(37 * e) % 101 for e in range(num_experts)]
    cards = place_in_nodes(weights, num_nodes, cards_per_node, num_redundant)
    assert_complete(num_experts, cards)
    table = hosts_of(num_experts, cards)
    for expert in table.order:
        found = table.hosts[table.first[expert] : table.first[expert + 1]]
        assert len({card // cards_per_node for card in found}) == 1


@pytest.mark.parametrize(
    ("num_cards", "num_redundant", "said"),
    [(0, 0, "num_cards"), (9, 0, "num_cards"), (4, 3, "num_redundant <= 2"), (1, 1, "<= 0")],
)
def test_tables_that_no_group_can_hold_are_refused(
    num_cards: int, num_redundant: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        place_ring([1.0] * 8, num_cards, num_redundant)
    with pytest.raises(ValueError, match="8 experts"):
        place_in_nodes([1.0] * 8, 3, 1, 0)
