"""Rows of single cards: together the split of all, and no more travel than must."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.expert_dispatch import (
    Scratch,
    assign_by_recent,
    assign_rows,
    table_of,
)
from rorqual_policy.expert_placement import Cards, place_ring
from rorqual_policy.expert_split import DEFAULT_SPLIT, split_tokens


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, Cards, list[list[int]]]:
    """(experts, table with 1 to 3 hosts each, the experts of every card's rows)"""
    num_cards, num_experts = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    some = st.sets(st.integers(0, num_cards - 1), min_size=1, max_size=min(3, num_cards))
    hosts = draw(st.lists(some, min_size=num_experts, max_size=num_experts))
    cards = tuple(
        tuple(e for e in range(num_experts) if card in hosts[e]) for card in range(num_cards)
    )
    rows = st.lists(st.integers(0, num_experts - 1), max_size=60)
    return num_experts, cards, draw(st.lists(rows, min_size=num_cards, max_size=num_cards))


def scratch(num_experts: int, num_places: int, num_cards: int) -> Scratch:
    return Scratch(
        [0.0] * num_experts,
        [0] * num_experts,
        [0.0] * num_places,
        [0.0] * num_places,
        [0.0] * num_cards,
    )


@given(steps())
def test_the_rows_of_all_cards_add_up_to_the_split(
    case: tuple[int, Cards, list[list[int]]],
) -> None:
    num_experts, cards, rows = case
    table = table_of(num_experts, cards)
    counts = [[given.count(expert) for expert in range(num_experts)] for given in rows]
    total = [sum(column) for column in zip(*counts, strict=True)]
    split = split_tokens(total, table.first, table.hosts, table.order, len(cards))
    sent = [0] * len(table.hosts)
    kept = [0] * len(table.hosts)
    for card, experts in enumerate(rows):
        to_cards, to_slots = [0] * len(experts), [0] * len(experts)
        work = scratch(num_experts, len(table.hosts), len(cards))
        args = card, experts, counts, table, work, DEFAULT_SPLIT, to_cards, to_slots
        busiest = assign_rows(*args)
        for expert, to, slot in zip(experts, to_cards, to_slots, strict=True):
            assert cards[to][slot] == expert
            place = table.hosts.index(to, table.first[expert])
            sent[place] += 1
            kept[place] += to == card
    assert tuple(sent) == split
    loads = [
        sum(s for s, h in zip(split, table.hosts, strict=True) if h == c) for c in range(len(cards))
    ]
    assert busiest == pytest.approx(max(loads))
    for expert in range(num_experts):
        for place in range(table.first[expert], table.first[expert + 1]):
            assert kept[place] == min(split[place], counts[table.hosts[place]][expert])


@given(st.integers(2, 5), st.integers(0, 50), st.lists(st.integers(0, 9), min_size=1, max_size=80))
def test_recent_parts_are_kept_to_within_a_row(num_cards: int, first: int, rows: list[int]) -> None:
    cards = place_ring([1.0] * 10, num_cards, 1)
    table = table_of(10, cards)
    split = [float(1 + place % 3) for place in range(len(table.hosts))]
    turns = [first] * 10
    to_cards, to_slots = [0] * len(rows), [0] * len(rows)
    assign_by_recent(0.25, rows, turns, table, split, to_cards, to_slots)
    for expert in set(rows):
        places = range(table.first[expert], table.first[expert + 1])
        whole = sum(split[place] for place in places)
        assert turns[expert] == first + rows.count(expert)
        for place in places:
            got = sum(
                e == expert and to == table.hosts[place]
                for e, to in zip(rows, to_cards, strict=True)
            )
            assert abs(got - rows.count(expert) * split[place] / whole) < 2.5
    assert all(
        cards[to][slot] == expert for expert, to, slot in zip(rows, to_cards, to_slots, strict=True)
    )
