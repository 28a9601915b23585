"""When a layer's table changes, to what, and which weights have to travel for it."""

from collections.abc import Sequence
from typing import NamedTuple

from rorqual_policy.expert_moves import DEFAULT_MOVES, Improve, MoveParams, next_cards
from rorqual_policy.expert_placement import Cards, num_changes


class RebalanceParams(NamedTuple):
    """Bounds of one decision."""

    moves: MoveParams = DEFAULT_MOVES
    """Of one layer."""
    num_nodes: int = 1
    """Groups of consecutive cards, equally many each: experts stay in their node."""
    least_tokens: float = 16.0
    """For an expert, in the mean: with fewer a table would follow noise."""


DEFAULT_REBALANCE = RebalanceParams()


class Rebalance(NamedTuple):
    """A layer's next table."""

    cards: Cards
    num_changes: int
    """Slots that get another expert."""
    reason: str
    """few_tokens, no_gain or gain."""


class Fetch(NamedTuple):
    """A slot's next expert, and a slot that holds it already."""

    expert: int
    source: int
    source_slot: int
    target: int
    target_slot: int


def decide_rebalance(
    samples: Sequence[Sequence[float]],
    cards: Cards,
    params: RebalanceParams = DEFAULT_REBALANCE,
    improve: Improve | None = None,
) -> Rebalance:
    """The next table of a layer, at most params.moves.max_changes slots away.

    samples: as `next_cards` takes them.
    """
    recent = samples[0]
    if sum(recent) < params.least_tokens * len(recent):
        return Rebalance(cards, 0, "few_tokens")
    found: list[tuple[int, ...]] = list(cards)
    left = params.moves.max_changes
    for node in sorted(_nodes(cards, params.num_nodes), key=lambda n: -_tokens(recent, cards, n)):
        part = tuple(cards[card] for card in node)
        after = _within(samples, part, params.moves._replace(max_changes=left), improve)
        left -= num_changes(part, after)
        for card, experts in zip(node, after, strict=True):
            found[card] = _kept_in_place(cards[card], experts)
    moved = params.moves.max_changes - left
    return Rebalance(tuple(found), moved, "gain" if moved else "no_gain")


def plan_fetches(before: Cards, after: Cards) -> tuple[Fetch, ...]:
    """What every changed slot fetches, from the cards that held it before in turn.

    Raises: ValueError unless every card has as many slots as before and every expert had a host.
    """
    if [len(experts) for experts in before] != [len(experts) for experts in after]:
        raise ValueError("a table's next one has as many slots on every card")
    held: dict[int, list[tuple[int, int]]] = {}
    for card, experts in enumerate(before):
        for slot, expert in enumerate(experts):
            held.setdefault(expert, []).append((card, slot))
    fetches: list[Fetch] = []
    for card, (old, new) in enumerate(zip(before, after, strict=True)):
        for slot, (was, expert) in enumerate(zip(old, new, strict=True)):
            if expert == was:
                continue
            if expert not in held:
                raise ValueError(f"no card held expert {expert}")
            source = held[expert][len(fetches) % len(held[expert])]
            fetches.append(Fetch(expert, *source, card, slot))
    return tuple(fetches)


def is_within_nodes(cards: Cards, num_nodes: int) -> bool:
    """Whether no expert has hosts in two nodes."""
    if len(cards) % num_nodes:
        return False
    seen: dict[int, int] = {}
    return all(
        seen.setdefault(expert, number) == number
        for number, node in enumerate(_nodes(cards, num_nodes))
        for card in node
        for expert in cards[card]
    )


def _kept_in_place(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    """Experts that stay keep their slots; those that come fill the others."""
    coming = iter([expert for expert in new if expert not in old])
    return tuple(expert if expert in new else next(coming) for expert in old)


def _nodes(cards: Cards, num_nodes: int) -> list[range]:
    """Cards of every node."""
    each = len(cards) // num_nodes
    return [range(node * each, (node + 1) * each) for node in range(num_nodes)]


def _tokens(recent: Sequence[float], cards: Cards, node: range) -> float:
    return sum(recent[expert] for expert in {expert for card in node for expert in cards[card]})


def _within(
    samples: Sequence[Sequence[float]], part: Cards, params: MoveParams, improve: Improve | None
) -> Cards:
    """`next_cards` of a node's cards, with the node's experts alone."""
    experts = sorted({expert for held in part for expert in held})
    number = {expert: place for place, expert in enumerate(experts)}
    own = [[sample[expert] for expert in experts] for sample in samples]
    numbered = tuple(tuple(number[expert] for expert in held) for held in part)
    after = next_cards(own, numbered, params, improve)
    return tuple(tuple(experts[place] for place in held) for held in after)
