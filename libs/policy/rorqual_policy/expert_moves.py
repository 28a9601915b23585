"""A layer's next table from its present one, with few changed slots: every change moves weights.

`improve_slots` and what it calls use indexing and arithmetic only and compile as they are, as
`expert_split` does.
"""

from collections.abc import Callable, MutableSequence, Sequence
from itertools import accumulate
from typing import NamedTuple

from rorqual_policy.expert_placement import Cards, index_hosts
from rorqual_policy.expert_split import RELAXATION, SplitParams, fill_split


class MoveParams(NamedTuple):
    """How much may change at once, and how wide to look.

    Source of the defaults: scan on synthetic decode traffic of 64 cards; trials with 8 or more
    sweeps, or with more cards, were not better.
    """

    max_changes: int = 8
    num_hot: int = 1
    """Cards to take load from that are tried for one change."""
    num_cold: int = 4
    """Cards to bring it to."""
    max_sweeps: int = 4
    """To level the cards of a table that is tried: few. A table that is even only
    after many has its spare replicas far from where the load is, and noise undoes it."""
    least_gain: float = 1e-6
    """Of unevenness, for one changed slot."""


DEFAULT_MOVES = MoveParams()


class Change(NamedTuple):
    """slots[target] gets the expert of slots[source]; and back, when it is a swap."""

    source: int
    target: int
    is_swap: bool


Improve = Callable[
    [Sequence[Sequence[float]], Sequence[int], MutableSequence[int], MoveParams], int
]
"""`improve_slots`, or the same compiled."""


def next_cards(
    samples: Sequence[Sequence[float]],
    cards: Cards,
    params: MoveParams = DEFAULT_MOVES,
    improve: Improve | None = None,
) -> Cards:
    """The table with at most max_changes slots changed, so that a per-step split keeps the cards
    more even; the same one when nothing helps.

    samples: tokens by expert in one or more periods, the recent one first; [samples][experts]. The
    table should suit all of them: older ones keep it fit for traffic that comes back.
    Every expert keeps a host, no card holds one twice; equal gains go to the change found first.
    """
    slots = [expert for experts in cards for expert in experts]
    card_first = [0, *accumulate(len(experts) for experts in cards)]
    (improve or improve_slots)(samples, card_first, slots, params)
    return tuple(
        tuple(slots[card_first[card] : card_first[card + 1]]) for card in range(len(cards))
    )


class LevelledTable(NamedTuple):
    """A table, its hosts, and tokens levelled over them."""

    card_first: Sequence[int]
    slots: MutableSequence[int]
    """The experts of card c are slots[card_first[c]:card_first[c + 1]]."""
    first: MutableSequence[int]
    hosts: MutableSequence[int]
    split: MutableSequence[float]
    load: MutableSequence[float]
    """Tokens by card."""


def unlevelled(
    num_experts: int, card_first: Sequence[int], slots: MutableSequence[int]
) -> LevelledTable:
    """Shares card_first and slots; what `unevenness` fills is zero."""
    return LevelledTable(
        card_first,
        slots,
        [0] * (num_experts + 1),
        [0] * len(slots),
        [0.0] * len(slots),
        [0.0] * (len(card_first) - 1),
    )


def improve_slots(
    samples: Sequence[Sequence[float]],
    card_first: Sequence[int],
    slots: MutableSequence[int],
    params: MoveParams,
) -> int:
    """Change slots in place, the best change first; how many were changed."""
    num_changed = 0
    table = unlevelled(len(samples[0]), card_first, slots)
    trial = unlevelled(len(samples[0]), card_first, slots)
    while num_changed < params.max_changes:
        now = unevenness(samples, table, params)
        change, gain = best_change(samples, table, trial, now, params)
        size = 2 if change.is_swap else 1
        if gain < params.least_gain or num_changed + size > params.max_changes:
            break
        apply_change(slots, change)
        num_changed += size
    return num_changed


def unevenness(
    samples: Sequence[Sequence[float]], table: LevelledTable, params: MoveParams
) -> float:
    """Relative variance of the cards' loads once they are levelled, added over the samples. Fills
    the table's hosts, and its split and load for the first sample."""
    order = index_hosts(table.card_first, table.slots, table.first, table.hosts)
    split_params = SplitParams(params.max_sweeps, RELAXATION, 0.0)
    uneven = 0.0
    for sample in range(len(samples) - 1, -1, -1):
        fill_split(
            samples[sample],
            table.first,
            table.hosts,
            order,
            table.split,
            table.load,
            split_params,
        )
        uneven += relative_variance(table.load)
    return uneven


def relative_variance(load: Sequence[float]) -> float:
    """Mean squared deviation from the mean, over the squared mean; 0 without load."""
    total, squares = 0.0, 0.0
    for value in load:
        total += value
        squares += value * value
    return len(load) * squares / (total * total) - 1.0 if total > 0.0 else 0.0


def best_change(
    samples: Sequence[Sequence[float]],
    table: LevelledTable,
    trial: LevelledTable,
    now: float,
    params: MoveParams,
) -> tuple[Change, float]:
    """The change with the largest gain for each changed slot, and that gain.

    now: unevenness without a change. trial: shares the table's slots, which end as they were.
    """
    best, best_gain = Change(0, 0, False), 0.0
    cold_cards = extreme_cards(table.load, params.num_cold, -1.0)
    for hot in extreme_cards(table.load, params.num_hot, 1.0):
        for number in range(3 * len(cold_cards)):
            cold = cold_cards[number // 3]
            change = find_change(number % 3, hot, cold, samples[0], table)
            if change.source >= 0:
                gain = gain_of(change, samples, trial, now, params)
                if gain > best_gain:
                    best, best_gain = change, gain
    return best, best_gain


def gain_of(
    change: Change,
    samples: Sequence[Sequence[float]],
    trial: LevelledTable,
    now: float,
    params: MoveParams,
) -> float:
    """What a change takes from the unevenness, for each slot."""
    before = trial.slots[change.target]
    apply_change(trial.slots, change)
    then = unevenness(samples, trial, params)
    undo_change(trial.slots, change, before)
    return (now - then) / (2.0 if change.is_swap else 1.0)


def find_change(
    kind: int, hot: int, cold: int, weights: Sequence[float], table: LevelledTable
) -> Change:
    """A replica (kind 0), or a swap that moves half of the gap (1) or all of it (2); source is -1
    when there is none."""
    gap = table.load[hot] - table.load[cold]
    if gap <= 0.0:
        return Change(-1, -1, False)
    if kind == 0:
        return find_replica(hot, cold, table)
    return find_swap(hot, cold, gap * 0.5 if kind == 1 else gap, weights, table)


def find_replica(hot: int, cold: int, table: LevelledTable) -> Change:
    """The expert with most tokens on the hot card, in place of the replica with fewest on the cold
    one, whose tokens go back to its other hosts."""
    source, most = -1, -1.0
    for slot in range(table.card_first[hot], table.card_first[hot + 1]):
        expert = table.slots[slot]
        tokens = table.split[place_of(expert, hot, table.first, table.hosts)]
        if place_of(expert, cold, table.first, table.hosts) < 0 and tokens > most:
            source, most = slot, tokens
    target, fewest = -1, most
    for slot in range(table.card_first[cold], table.card_first[cold + 1]):
        expert = table.slots[slot]
        tokens = table.split[place_of(expert, cold, table.first, table.hosts)]
        if has_replicas(expert, table) and tokens < fewest:
            target, fewest = slot, tokens
    return Change(source if target >= 0 else -1, target, False)


def find_swap(
    hot: int, cold: int, wanted: float, weights: Sequence[float], table: LevelledTable
) -> Change:
    """Of the pairs of experts with one host each, the one that moves closest to the wanted number
    of tokens from the hot card to the cold one."""
    source, target, closest = -1, -1, wanted
    for given in range(table.card_first[hot], table.card_first[hot + 1]):
        if has_replicas(table.slots[given], table):
            continue
        for taken in range(table.card_first[cold], table.card_first[cold + 1]):
            moved = weights[table.slots[given]] - weights[table.slots[taken]]
            if abs(moved - wanted) < closest and not has_replicas(table.slots[taken], table):
                source, target, closest = given, taken, abs(moved - wanted)
    return Change(source, target, True)


def has_replicas(expert: int, table: LevelledTable) -> bool:
    """It has more than one host."""
    return table.first[expert + 1] - table.first[expert] > 1


def place_of(expert: int, card: int, first: Sequence[int], hosts: Sequence[int]) -> int:
    """Where `hosts` names the card for the expert; -1 when it does not hold it."""
    for place in range(first[expert], first[expert + 1]):
        if hosts[place] == card:
            return place
    return -1


def extreme_cards(load: Sequence[float], num: int, sign: float) -> list[int]:
    """The num cards with the largest sign * load, ties in order of cards."""
    found = [0 for _ in range(0)]
    for _ in range(min(num, len(load))):
        best = -1
        for card in range(len(load)):
            if card not in found and (best < 0 or sign * load[card] > sign * load[best]):
                best = card
        found.append(best)
    return found


def apply_change(slots: MutableSequence[int], change: Change) -> None:
    """In place."""
    replaced = slots[change.target]
    slots[change.target] = slots[change.source]
    if change.is_swap:
        slots[change.source] = replaced


def undo_change(slots: MutableSequence[int], change: Change, before: int) -> None:
    """In place; before: what the target held."""
    if change.is_swap:
        slots[change.source] = slots[change.target]
    slots[change.target] = before
