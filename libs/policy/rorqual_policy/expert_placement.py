"""Which card holds which experts, and which experts a second time."""

from collections.abc import MutableSequence, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import NamedTuple

from rorqual_policy.expert_split import GOLDEN

Cards = tuple[tuple[int, ...], ...]
"""The experts of every card, slot after slot: one layer's table."""


class Hosts(NamedTuple):
    """A table by expert: the form that splits take."""

    first: tuple[int, ...]
    """Cards hosts[first[e]:first[e + 1]] hold expert e, ascending, each once."""
    hosts: tuple[int, ...]
    order: tuple[int, ...]
    """Experts with several hosts, by their first host: neighbours follow each other, so that one
    pass over them carries a surplus all the way round a cycle."""


def hosts_of(num_experts: int, cards: Cards) -> Hosts:
    """A card that holds an expert twice is one host: both copies share its compute."""
    held = [sorted(set(experts)) for experts in cards]
    slots = [expert for experts in held for expert in experts]
    card_first = [0, *accumulate(len(experts) for experts in held)]
    first, hosts = [0] * (num_experts + 1), [0] * len(slots)
    order = index_hosts(card_first, slots, first, hosts)
    return Hosts(tuple(first), tuple(hosts), tuple(order))


def index_hosts(
    card_first: Sequence[int],
    slots: Sequence[int],
    first: MutableSequence[int],
    hosts: MutableSequence[int],
) -> list[int]:
    """Fill first and hosts of a table, and return its order (see `Hosts`).

    slots[card_first[c]:card_first[c + 1]] are the experts of card c, each at most once. Compiles
    as it is.
    """
    num_experts = len(first) - 1
    for expert in range(num_experts + 1):
        first[expert] = 0
    for expert in slots:
        first[expert + 1] += 1
    for expert in range(num_experts):
        first[expert + 1] += first[expert]
    num_found = [0] * num_experts
    order = [0 for _ in range(0)]
    for card in range(len(card_first) - 1):
        for slot in range(card_first[card], card_first[card + 1]):
            expert = slots[slot]
            hosts[first[expert] + num_found[expert]] = card
            if num_found[expert] == 0 and first[expert + 1] - first[expert] > 1:
                order.append(expert)
            num_found[expert] += 1
    return order


def place_ring(weights: Sequence[float], num_cards: int, num_redundant: int) -> Cards:
    """Each card holds its share of the experts and num_redundant more.

    weights: tokens by expert, recently. The num_cards * num_redundant heaviest get two replicas
    each, on cards that so form cycles: what is too much for one card can be handed on from card to
    card all the way round. The others follow, heaviest first, each to the card with the least.
    Raises: ValueError.
    """
    check_slots(len(weights), num_cards, num_redundant)
    order = sorted(range(len(weights)), key=lambda expert: (-weights[expert], expert))
    num_doubled = num_cards * num_redundant
    cards: list[list[int]] = [[] for _ in range(num_cards)]
    load = [0.0] * num_cards
    places = _even_places(num_cards)
    for rank, expert in enumerate(order[:num_doubled]):
        turn, number = divmod(rank, num_cards)
        home = places[number]
        for card in (home, (home + 1 + turn % (num_cards - 1)) % num_cards):
            cards[card].append(expert)
            load[card] += weights[expert] / 2
    _place_singles(order[num_doubled:], weights, cards, load, num_redundant)
    return tuple(tuple(experts) for experts in cards)


def place_in_nodes(
    weights: Sequence[float], num_nodes: int, cards_per_node: int, num_redundant: int
) -> Cards:
    """`place_ring` within every node: replicas of an expert share a node, so that levelling the
    cards sends nothing between nodes. Cards are numbered node after node.

    Nodes get equally many experts, heaviest first, each to the node with the least.
    Raises: ValueError.
    """
    num_experts = len(weights)
    if num_nodes < 1 or num_experts % num_nodes:
        raise ValueError(f"{num_experts} experts can't be shared evenly by {num_nodes} nodes")
    order = sorted(range(num_experts), key=lambda expert: (-weights[expert], expert))
    nodes: list[list[int]] = [[] for _ in range(num_nodes)]
    _place_lightest(
        order, weights, nodes, [0.0] * num_nodes, [num_experts // num_nodes] * num_nodes
    )
    cards: list[tuple[int, ...]] = []
    for experts in nodes:
        inner = place_ring([weights[e] for e in experts], cards_per_node, num_redundant)
        cards.extend(tuple(experts[place] for place in held) for held in inner)
    return tuple(cards)


def check_slots(num_experts: int, num_cards: int, num_redundant: int) -> None:
    """Raises: ValueError unless every card has an expert and every redundant slot a use."""
    if not 1 <= num_cards <= num_experts:
        raise ValueError(f"need 1 <= num_cards <= {num_experts} experts; got {num_cards}")
    limit = num_experts // num_cards if num_cards > 1 else 0
    if not 0 <= num_redundant <= limit:
        raise ValueError(f"need 0 <= num_redundant <= {limit} a card; got {num_redundant}")


def num_changes(before: Cards, after: Cards) -> int:
    """Slots whose weights have to be fetched from another card."""
    return sum(len(set(new) - set(old)) for old, new in zip(before, after, strict=True))


def _even_places(num_cards: int) -> list[int]:
    """Card of the heaviest expert, of the second, ...: on the cycle those that follow each other by
    weight are far apart, so every stretch of it has its share of heavy ones."""
    by_turn = sorted(range(num_cards), key=lambda rank: rank * GOLDEN % 1.0)
    places = [0] * num_cards
    for card, rank in enumerate(by_turn):
        places[rank] = card
    return places


def _place_singles(
    experts: Sequence[int],
    weights: Sequence[float],
    cards: list[list[int]],
    load: list[float],
    num_redundant: int,
) -> None:
    num_cards = len(cards)
    each, more = divmod(len(weights), num_cards)
    room = [each + (card < more) + num_redundant - len(held) for card, held in enumerate(cards)]
    _place_lightest(experts, weights, cards, load, room)


def _place_lightest(
    experts: Sequence[int],
    weights: Sequence[float],
    bins: list[list[int]],
    load: list[float],
    room: list[int],
) -> None:
    """Each expert to the bin with the least load that has room."""
    heap = [(load[b], b) for b in range(len(bins)) if room[b] > 0]
    heapify(heap)
    for expert in experts:
        least, chosen = heappop(heap)
        bins[chosen].append(expert)
        room[chosen] -= 1
        if room[chosen] > 0:
            heappush(heap, (least + weights[expert], chosen))
