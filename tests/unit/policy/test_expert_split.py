"""Splits of a step's tokens over replicas: whole, complete, close to the best there is."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_policy.expert_placement import Hosts, hosts_of
from rorqual_policy.expert_split import SplitParams, choose_replica, split_tokens


@st.composite
def counted_tables(draw: st.DrawFn) -> tuple[list[int], Hosts, int]:
    """Any replicas anywhere, 1 to 4 hosts an expert."""
    num_cards = draw(st.integers(1, 7))
    num_experts = draw(st.integers(1, 24))
    found = st.sets(st.integers(0, num_cards - 1), min_size=1, max_size=min(4, num_cards))
    hosts = draw(st.lists(found, min_size=num_experts, max_size=num_experts))
    cards = tuple(
        tuple(e for e in range(num_experts) if card in hosts[e]) for card in range(num_cards)
    )
    counts = draw(st.lists(st.integers(0, 3000), min_size=num_experts, max_size=num_experts))
    return counts, hosts_of(num_experts, cards), num_cards


def loads(split: tuple[int, ...], table: Hosts, num_cards: int) -> list[int]:
    load = [0] * num_cards
    for tokens, card in zip(split, table.hosts, strict=True):
        load[card] += tokens
    return load


def least_possible_load(counts: list[int], table: Hosts, num_cards: int) -> float:
    """The linear program's optimum: no set of cards can hand on what only its members hold, and
    the tightest set is the bound that is reached (max-flow, min-cut)."""
    own = [{*table.hosts[table.first[e] : table.first[e + 1]]} for e in range(len(counts))]
    return max(
        sum(count for count, hosts in zip(counts, own, strict=True) if hosts <= {*cards}) / size
        for size in range(1, num_cards + 1)
        for cards in combinations(range(num_cards), size)
    )


@given(counted_tables())
def test_every_token_of_an_expert_goes_to_one_of_its_hosts(
    case: tuple[list[int], Hosts, int],
) -> None:
    counts, table, num_cards = case
    split = split_tokens(counts, *table, num_cards)
    assert all(tokens >= 0 for tokens in split)
    assert [sum(split[table.first[e] : table.first[e + 1]]) for e in range(len(counts))] == counts


@settings(max_examples=200)
@given(counted_tables())
def test_enough_sweeps_reach_the_optimum(case: tuple[list[int], Hosts, int]) -> None:
    counts, table, num_cards = case
    split = split_tokens(counts, *table, num_cards, SplitParams(400, 1.4, 0.0))
    rounding = num_cards + len(table.order)
    best = least_possible_load(counts, table, num_cards)
    assert max(loads(split, table, num_cards)) <= 1.001 * best + rounding


@given(st.lists(st.integers(0, 4000), min_size=24, max_size=24))
def test_default_sweeps_on_a_cycle_stay_within_2_percent_of_the_optimum(
    counts: list[int],
) -> None:
    """8 cards, 2 single experts each and one more that it shares with the next card."""
    cards = tuple((c, 8 + c, 16 + c, 16 + (c - 1) % 8) for c in range(8))
    table = hosts_of(24, cards)
    split = split_tokens(counts, *table, 8)
    best = least_possible_load(counts, table, 8)
    assert max(loads(split, table, 8)) <= 1.02 * best + 8


def test_two_copies_on_one_card_are_one_host() -> None:
    table = hosts_of(2, ((0, 0, 1), (0, 1)))
    assert table.hosts == (0, 1, 0, 1)
    assert loads(split_tokens([900, 100], *table, 2), table, 2) == [500, 500]


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=4).filter(any),
    st.integers(1, 400),
    st.floats(0, 1, exclude_max=True),
)
def test_recent_shares_are_kept_to_within_a_few_tokens(
    split: list[int], num_tokens: int, phase: float
) -> None:
    found = [0] * len(split)
    for turn in range(num_tokens):
        place = choose_replica(turn, phase, 0, len(split), float(sum(split)), split)
        found[place] += 1
    for tokens, part in zip(found, split, strict=True):
        assert abs(tokens - num_tokens * part / sum(split)) <= 5
