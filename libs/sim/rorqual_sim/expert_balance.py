"""How even the cards of an expert-parallel group are: a placement refreshed at intervals, a split
of tokens in every step."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from rorqual_policy import expert_moves, expert_split
from rorqual_policy.expert_moves import DEFAULT_MOVES, MoveParams
from rorqual_policy.expert_placement import Cards, hosts_of, num_changes, place_ring
from rorqual_policy.expert_split import DEFAULT_SPLIT, SplitParams

from rorqual_sim.compiled import compiled
from rorqual_sim.expert_eplb import place_greedily
from rorqual_sim.expert_load import WINDOW_S, Floats, LayerLoad

Ints = NDArray[np.int64]
Placer = Callable[[Floats, Cards | None], Cards]
"""(counts of all windows so far, the present table or None) -> the next table."""

OLDER_S = 300.0
"""Before the recent counts: traffic comes back, a table should suit both."""

# Callable[...]: arrays are what these take, compiled.
fill_split: Callable[..., int] = compiled(expert_split.fill_split)
round_split: Callable[..., None] = compiled(expert_split.round_split)
choose_replica: Callable[..., int] = compiled(expert_split.choose_replica)
improve_slots: Callable[..., int] = compiled(expert_moves.improve_slots)


class SplitMode(StrEnum):
    """What a step's tokens are split by."""

    EVEN = "even"
    """Equal parts for all replicas, as many as a card may hold of one expert."""
    COUNTS = "counts"
    """The step's own counts."""
    RECENT = "recent"
    """Counts of the window before: no exchange of counts in the step."""


@dataclass(frozen=True)
class Table:
    """Hosts as arrays, for compiled splits."""

    cards: Cards
    first: Ints
    hosts: Ints
    order: Ints

    @classmethod
    def of(cls, num_experts: int, cards: Cards) -> Table:
        table = hosts_of(num_experts, cards)
        first, hosts, order = (np.array(part, np.int64) for part in table)
        return cls(cards, first, hosts, order)

    def split(self, counts: Floats, params: SplitParams) -> tuple[Floats, Floats]:
        """(split, load by card): whole tokens; the same as `split_tokens` gives."""
        split, load = np.zeros(len(self.hosts)), np.zeros(len(self.cards))
        fill_split(counts, self.first, self.hosts, self.order, split, load, params)
        round_split(counts, self.first, self.hosts, split, load)
        return split, load


@dataclass(frozen=True)
class Balance:
    """Largest load of a card over the mean, step by step, and what the placement moved."""

    ratios: Floats
    changes: Floats
    """Slots changed at each refresh."""

    @property
    def mean(self) -> float:
        return float(self.ratios.mean())

    @property
    def p99(self) -> float:
        return float(np.percentile(self.ratios, 99))


def ring_placer(num_cards: int, num_redundant: int, recent_s: float = 30.0) -> Placer:
    """A new ring at every refresh."""
    return lambda past, _cards: place_ring(_mean(past, recent_s), num_cards, num_redundant)


def greedy_placer(num_cards: int, num_redundant: int, recent_s: float = 60.0) -> Placer:
    """EPLB-style, anew at every refresh."""
    return lambda past, _cards: place_greedily(_mean(past, recent_s), num_cards, num_redundant)


def moving_placer(num_cards: int, num_redundant: int, recent_s: float = 30.0) -> Placer:
    """A ring at first, then few changes at every refresh."""

    def place(past: Floats, cards: Cards | None) -> Cards:
        recent = _mean(past, recent_s)
        if cards is None:
            return place_ring(recent, num_cards, num_redundant)
        older = _mean(past[: len(past) - round(recent_s / WINDOW_S)], OLDER_S)
        return moved_cards([recent, older], cards, DEFAULT_MOVES)

    return place


def _mean(past: Floats, last_s: float) -> list[float]:
    found: list[float] = past[-round(last_s / WINDOW_S) :].mean(0).tolist()
    return found


def moved_cards(samples: list[list[float]], cards: Cards, params: MoveParams) -> Cards:
    """`next_cards`, compiled."""
    return expert_moves.next_cards(samples, cards, params, _improve)


def _improve(
    samples: Sequence[Sequence[float]],
    card_first: Sequence[int],
    slots: MutableSequence[int],
    params: MoveParams,
) -> int:
    changed = np.array(slots, np.int64)
    num_changed = improve_slots(np.array(samples), np.array(card_first), changed, params)
    slots[:] = changed.tolist()
    return num_changed


def simulate_experts(
    layer: LayerLoad,
    placer: Placer,
    mode: SplitMode,
    *,
    refresh_s: float,
    warm_s: float,
    params: SplitParams = DEFAULT_SPLIT,
    seed: int = 0,
) -> Balance:
    """Place every refresh_s; steps before warm_s (a multiple of it) are not counted."""
    every, warm = round(refresh_s / WINDOW_S), round(warm_s / WINDOW_S)
    num_experts = layer.windows.shape[1]
    rng = np.random.Generator(np.random.PCG64(seed))
    cards: Cards | None = None
    ratios: list[float] = []
    changes: list[int] = []
    for window in range(every, len(layer.windows)):
        if window % every == 0:
            before, cards = cards, placer(layer.windows[:window], cards)
            table = Table.of(num_experts, cards)
            if before is not None and window >= warm:
                changes.append(num_changes(before, cards))
        if window >= warm:
            recent = layer.windows[window - 1]
            ratios.extend(_ratios(layer.steps[window], table, mode, recent, params, rng))
    return Balance(np.array(ratios), np.array(changes, np.float64))


def _ratios(
    steps: Floats,
    table: Table,
    mode: SplitMode,
    recent: Floats,
    params: SplitParams,
    rng: np.random.Generator,
) -> list[float]:
    loads = []
    if mode is SplitMode.RECENT:
        split, _ = table.split(recent, params)
    for counts in steps:
        if mode is SplitMode.EVEN:
            loads.append(even_load(counts, table.cards))
        elif mode is SplitMode.COUNTS:
            loads.append(table.split(counts, params)[1])
        else:
            loads.append(_recent_load(counts, table, split, rng))
    return [float(load.max() / load.mean()) for load in loads]


def even_load(counts: Floats, cards: Cards) -> Floats:
    """Tokens by card, equal parts for all slots of an expert."""
    slots = np.concatenate([np.array(experts) for experts in cards])
    owners = np.repeat(np.arange(len(cards)), [len(experts) for experts in cards])
    parts = counts / np.bincount(slots, minlength=len(counts))
    return np.bincount(owners, weights=parts[slots], minlength=len(cards)).astype(np.float64)


def repeat_split(steps: Floats, table: Table, params: SplitParams) -> None:
    """Split [steps, experts] counts one after the other, inside compiled code: to be timed."""
    split, load = np.zeros(len(table.hosts)), np.zeros(len(table.cards))
    _repeat_split(steps, table.first, table.hosts, table.order, split, load, params)


@compiled
def _repeat_split(
    steps: Floats,
    first: Ints,
    hosts: Ints,
    order: Ints,
    split: Floats,
    load: Floats,
    params: SplitParams,
) -> None:
    for step in range(len(steps)):
        fill_split(steps[step], first, hosts, order, split, load, params)
        round_split(steps[step], first, hosts, split, load)


def _recent_load(counts: Floats, table: Table, split: Floats, rng: np.random.Generator) -> Floats:
    """Every card sends its own tokens by the recent split; each has drawn some of the counts."""
    num_cards = len(table.cards)
    load = np.zeros(num_cards)
    single = np.flatnonzero(np.diff(table.first) == 1)
    np.add.at(load, table.hosts[table.first[single]], counts[single])
    even = np.full(num_cards, 1 / num_cards)
    own = rng.multinomial(counts[table.order].astype(np.int64), even)
    turns = rng.integers(0, 1 << 20, own.shape)
    phases = np.mod(np.arange(num_cards, dtype=np.float64) * expert_split.GOLDEN, 1.0)
    _send_own(own, turns, phases, table.order, table.first, table.hosts, split, load)
    return load


@compiled
def _send_own(
    own: Ints,
    turns: Ints,
    phases: Floats,
    order: Ints,
    first: Ints,
    hosts: Ints,
    split: Floats,
    load: Floats,
) -> None:
    """own: tokens [experts with several hosts, cards] that each card has for each of them."""
    for row in range(len(order)):
        begin, end = first[order[row]], first[order[row] + 1]
        total = split[begin:end].sum()
        for card in range(own.shape[1]):
            for token in range(own[row, card]):
                turn = turns[row, card] + token
                place = choose_replica(turn, phases[card], begin, end, total, split)
                load[hosts[place]] += 1.0
