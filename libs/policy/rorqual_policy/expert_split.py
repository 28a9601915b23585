"""How many tokens of a step each replica of an expert takes, so that no card gets much more than
its share.

The functions use indexing and arithmetic only and fill arrays of the caller, so that they compile
as they are: over lists they are the specification, compiled over numpy arrays they are what runs.
`first`, `hosts` and `order` are those of `expert_placement.Hosts`. A split has one number for every
place of `hosts`.
"""

from collections.abc import MutableSequence, Sequence
from math import floor
from typing import NamedTuple

RELAXATION = 1.4


class SplitParams(NamedTuple):
    """How far to go.

    Source of the defaults: scan of relaxation 1.0 to 1.5 on synthetic decode steps of 64 cards
    whose replicas form one cycle, where plain sweeps (1.0) converge slowest.
    """

    max_sweeps: int = 16
    relaxation: float = RELAXATION
    """From 1 up to but not 2: how far beyond an expert's own balance its tokens move."""
    tolerance: float = 0.002
    """Sweeps end once no card has more than 1 + tolerance times the mean."""


DEFAULT_SPLIT = SplitParams()


def split_tokens(
    counts: Sequence[int],
    first: Sequence[int],
    hosts: Sequence[int],
    order: Sequence[int],
    num_cards: int,
    params: SplitParams = DEFAULT_SPLIT,
) -> tuple[int, ...]:
    """Tokens for every place of `hosts`; those of an expert add up to its count.

    counts: tokens of the step by expert, of all cards together. Every card that knows them comes
    to the same split, so nothing but the counts has to be agreed.
    """
    split, load = [0.0] * len(hosts), [0.0] * num_cards
    fill_split(counts, first, hosts, order, split, load, params)
    round_split(counts, first, hosts, split, load)
    return tuple(int(tokens) for tokens in split)


def fill_split(
    counts: Sequence[float],
    first: Sequence[int],
    hosts: Sequence[int],
    order: Sequence[int],
    split: MutableSequence[float],
    load: MutableSequence[float],
    params: SplitParams,
) -> int:
    """Fill split and load (tokens by card) with fractional tokens; the number of sweeps it took.

    Starts from even shares. A sweep levels the cards of each expert that has several, in order and
    the next time in reverse. Without end that is coordinate descent on the sum of squared loads,
    whose minimum also has the least possible largest load.
    """
    total = spread_evenly(counts, first, hosts, split, load)
    enough = (1.0 + params.tolerance) * total / len(load)
    for sweep in range(params.max_sweeps):
        if max_load(load) <= enough:
            return sweep
        for visit in range(len(order)):
            expert = order[visit] if sweep % 2 == 0 else order[len(order) - 1 - visit]
            level_expert(expert, counts, first, hosts, split, load, params.relaxation)
    return params.max_sweeps


def spread_evenly(
    counts: Sequence[float],
    first: Sequence[int],
    hosts: Sequence[int],
    split: MutableSequence[float],
    load: MutableSequence[float],
) -> float:
    """Every expert's tokens in equal parts over its cards, written to split and load; their sum."""
    total = 0.0
    for card in range(len(load)):
        load[card] = 0.0
    for expert in range(len(first) - 1):
        total += counts[expert]
        part = counts[expert] / (first[expert + 1] - first[expert])
        for place in range(first[expert], first[expert + 1]):
            split[place] = part
            load[hosts[place]] += part
    return total


def level_expert(
    expert: int,
    counts: Sequence[float],
    first: Sequence[int],
    hosts: Sequence[int],
    split: MutableSequence[float],
    load: MutableSequence[float],
    relaxation: float,
) -> None:
    """Move one expert's tokens towards the split that levels its cards, and up to relaxation times
    as far where no part becomes negative."""
    begin, end = first[expert], first[expert + 1]
    if end - begin == 2:
        level_pair(hosts[begin], hosts[begin + 1], begin, split, load, relaxation)
        return
    level = water_level(counts[expert], begin, end, hosts, split, load)
    step = relaxation
    for place in range(begin, end):
        wanted = max(0.0, level - (load[hosts[place]] - split[place]))
        if split[place] - wanted > 0.0:
            step = min(step, split[place] / (split[place] - wanted))
    for place in range(begin, end):
        wanted = max(0.0, level - (load[hosts[place]] - split[place]))
        moved = max(0.0, split[place] + step * (wanted - split[place])) - split[place]
        split[place] += moved
        load[hosts[place]] += moved


def level_pair(
    card: int,
    other: int,
    begin: int,
    split: MutableSequence[float],
    load: MutableSequence[float],
    relaxation: float,
) -> None:
    """`level_expert` for two cards: nearly every expert with several."""
    moved = relaxation * 0.5 * (load[other] - load[card])
    moved = max(-split[begin], min(split[begin + 1], moved))
    split[begin] += moved
    split[begin + 1] -= moved
    load[card] += moved
    load[other] -= moved


def water_level(
    tokens: float,
    begin: int,
    end: int,
    hosts: Sequence[int],
    split: Sequence[float],
    load: Sequence[float],
) -> float:
    """The level that the lowest of these cards reach together when the tokens are poured on what
    they have without them."""
    level, num_wet = 0.0, 0
    for _ in range(end - begin):
        below, num_below = tokens, 0
        for place in range(begin, end):
            ground = load[hosts[place]] - split[place]
            if num_wet == 0 or ground < level:
                below += ground
                num_below += 1
        if num_below in (0, num_wet):  # none: no tokens, equal cards
            break
        level, num_wet = below / num_below, num_below
    return level


def round_split(
    counts: Sequence[float],
    first: Sequence[int],
    hosts: Sequence[int],
    split: MutableSequence[float],
    load: MutableSequence[float],
) -> None:
    """Make every part whole, in place; what is left of an expert goes to its cards with the least
    load, one token each at a time."""
    for expert in range(len(first) - 1):
        begin, end = first[expert], first[expert + 1]
        if end - begin == 1:
            continue
        left = counts[expert]
        for place in range(begin, end):
            whole = floor(split[place])
            load[hosts[place]] += whole - split[place]
            split[place] = whole
            left -= whole
        while left > 0.5:
            least = begin
            for place in range(begin + 1, end):
                if load[hosts[place]] < load[hosts[least]]:
                    least = place
            split[least] += 1.0
            load[hosts[least]] += 1.0
            left -= 1.0


def max_load(load: Sequence[float]) -> float:
    """The largest; 0 at least."""
    most = 0.0
    for value in load:
        most = max(most, value)
    return most


GOLDEN = 0.6180339887498949
"""Multiples of it, less their whole part, fall evenly into [0, 1) however many there are."""


def choose_replica(
    turn: int, phase: float, begin: int, end: int, total: float, split: Sequence[float]
) -> int:
    """The place of `hosts` (begin <= place < end) for a card's token number `turn` of an expert,
    by the split of recent counts: no counts are exchanged in the step.

    phase: in [0, 1), another one for every card, so that cards do not round alike. total: sum of
    the expert's parts in split; parts in proportion to it are kept to within about one token a
    card, whatever the number of tokens.
    """
    aim = total * ((phase + turn * GOLDEN) % 1.0)
    for place in range(begin, end - 1):
        aim -= split[place]
        if aim < 0.0:
            return place
    return end - 1
