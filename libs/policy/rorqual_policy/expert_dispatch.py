"""Where a card's own rows of a step go: its part of a split that all cards come to alike.

The functions use indexing and arithmetic only and compile as they are, as `expert_split` does.
`first`, `hosts` and `order` are those of `expert_placement.Hosts`; counts[card][expert] are tokens
of one step.
"""

from collections.abc import MutableSequence, Sequence
from typing import NamedTuple

from rorqual_policy.expert_placement import Cards, hosts_of
from rorqual_policy.expert_split import (
    SplitParams,
    choose_replica,
    fill_split,
    max_load,
    round_split,
)


class Table(NamedTuple):
    """A placement by expert, with the slot that each place of `hosts` means."""

    first: Sequence[int]
    hosts: Sequence[int]
    order: Sequence[int]
    slots: Sequence[int]


class Scratch(NamedTuple):
    """What a step fills: by expert, by place of `hosts`, by card."""

    total: MutableSequence[float]
    next_place: MutableSequence[int]
    split: MutableSequence[float]
    own: MutableSequence[float]
    load: MutableSequence[float]


def table_of(num_experts: int, cards: Cards) -> Table:
    """cards: none holds an expert twice."""
    first, hosts, order = hosts_of(num_experts, cards)
    slots = [
        cards[hosts[place]].index(expert)
        for expert in range(num_experts)
        for place in range(first[expert], first[expert + 1])
    ]
    return Table(first, hosts, order, slots)


def assign_rows(
    card: int,
    experts: Sequence[int],
    counts: Sequence[Sequence[int]],
    table: Table,
    scratch: Scratch,
    params: SplitParams,
    to_cards: MutableSequence[int],
    to_slots: MutableSequence[int],
) -> float:
    """Fill to_cards and to_slots for the card's rows; the load of the busiest card.

    experts: one for every row, the card's counts. An expert's rows go to its hosts in the order of
    the rows, first to the first host.
    """
    split_step(counts, table, scratch, params)
    take_own_parts(card, counts, table, scratch)
    for expert in range(len(scratch.total)):
        scratch.next_place[expert] = table.first[expert]
    for row in range(len(experts)):
        place = scratch.next_place[experts[row]]
        while scratch.own[place] < 0.5:
            place += 1
        scratch.next_place[experts[row]] = place
        scratch.own[place] -= 1.0
        to_cards[row] = table.hosts[place]
        to_slots[row] = table.slots[place]
    return max_load(scratch.load)


def split_step(
    counts: Sequence[Sequence[int]], table: Table, scratch: Scratch, params: SplitParams
) -> None:
    """Fill total, split and load with the tokens of all cards, whole ones."""
    for expert in range(len(scratch.total)):
        scratch.total[expert] = 0.0
    for card in range(len(counts)):
        for expert in range(len(scratch.total)):
            scratch.total[expert] += counts[card][expert]
    split, load = scratch.split, scratch.load
    fill_split(scratch.total, table.first, table.hosts, table.order, split, load, params)
    round_split(scratch.total, table.first, table.hosts, split, load)


def take_own_parts(
    card: int, counts: Sequence[Sequence[int]], table: Table, scratch: Scratch
) -> None:
    """Fill own with the card's part of the split; the parts of all cards add up to it.

    A host keeps rows of its own, as many as the split gives it: they don't travel. The other rows
    of the cards, in order of cards, fill what is left of an expert's hosts, in order of hosts.
    """
    for expert in range(len(scratch.total)):
        begin, end = table.first[expert], table.first[expert + 1]
        if end - begin == 1:
            scratch.own[begin] = counts[card][expert]
            continue
        before = 0.0
        for other in range(card):
            before += num_away(other, counts[other][expert], begin, end, table, scratch)
        left = num_away(card, counts[card][expert], begin, end, table, scratch)
        for place in range(begin, end):
            host = table.hosts[place]
            kept = min(scratch.split[place], float(counts[host][expert]))
            room = scratch.split[place] - kept
            passed = min(before, room)
            taken = min(left, room - passed)
            before -= passed
            left -= taken
            scratch.own[place] = taken + (kept if host == card else 0.0)


def num_away(
    card: int, count: float, begin: int, end: int, table: Table, scratch: Scratch
) -> float:
    """Rows of an expert (places begin to end) that a card with `count` of them sends away."""
    for place in range(begin, end):
        if table.hosts[place] == card:
            return count - min(scratch.split[place], float(count))
    return float(count)


def assign_by_recent(
    phase: float,
    experts: Sequence[int],
    turns: MutableSequence[int],
    table: Table,
    split: Sequence[float],
    to_cards: MutableSequence[int],
    to_slots: MutableSequence[int],
) -> None:
    """Fill to_cards and to_slots by the split of recent counts: nothing is exchanged in the step.

    phase: see `choose_replica`. turns: rows of every expert so far; kept from step to step.
    """
    for row in range(len(experts)):
        begin, end = table.first[experts[row]], table.first[experts[row] + 1]
        total = 0.0
        for place in range(begin, end):
            total += split[place]
        place = choose_replica(turns[experts[row]], phase, begin, end, total, split)
        turns[experts[row]] += 1
        to_cards[row] = table.hosts[place]
        to_slots[row] = table.slots[place]
