"""The comparator: replicas and cards chosen greedily, tokens shared evenly by replicas.

Source: public description of the expert-parallel load balancer of DeepSeek (deepseek-ai/EPLB,
global policy): replicas one by one to the expert with the most tokens a replica, then replicas,
heaviest first, to the least loaded card with a free slot. Written from that description.
"""

from __future__ import annotations

from collections.abc import Sequence

from rorqual_policy.expert_placement import Cards


def place_greedily(weights: Sequence[float], num_cards: int, num_redundant: int) -> Cards:
    """num_redundant: a card. A card may hold two replicas of one expert: nothing forbids it."""
    num_slots = len(weights) + num_cards * num_redundant
    if num_slots % num_cards:
        raise ValueError(f"{num_slots} slots can't be shared evenly by {num_cards} cards")
    replicas = [1] * len(weights)
    for _ in range(num_cards * num_redundant):
        heaviest = max(range(len(weights)), key=lambda e: (weights[e] / replicas[e], -e))
        replicas[heaviest] += 1
    parts = [(weights[e] / replicas[e], e) for e in range(len(weights)) for _ in range(replicas[e])]
    cards: list[list[int]] = [[] for _ in range(num_cards)]
    load = [0.0] * num_cards
    for part, expert in sorted(parts, key=lambda item: (-item[0], item[1])):
        open_cards = [c for c in range(num_cards) if len(cards[c]) < num_slots // num_cards]
        card = min(open_cards, key=lambda c: (load[c], c))
        cards[card].append(expert)
        load[card] += part
    return tuple(tuple(experts) for experts in cards)
