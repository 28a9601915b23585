"""Which exercises there are, and how often each comes in a stage of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from training.tiny_v41.tasks.arithmetic import arithmetic
from training.tiny_v41.tasks.draw import Draw
from training.tiny_v41.tasks.exercise import Exercise
from training.tiny_v41.tasks.lists import copying, counting, sorting
from training.tiny_v41.tasks.phrases import instruction
from training.tiny_v41.tasks.recall import recall
from training.tiny_v41.tasks.shapes import shapes
from training.tiny_v41.tasks.structured import json_object
from training.tiny_v41.tasks.tools import calling

TOKENS_PER_SENTENCE = 13
_MAKERS: Mapping[str, Callable[[Draw], Exercise]] = {
    "instructions": instruction,
    "copy": copying,
    "count": counting,
    "sort": sorting,
    "arithmetic": arithmetic,
    "tools": calling,
    "json": json_object,
    "shapes": shapes,
}
FAMILIES = ("recall", *_MAKERS)
_CHAINABLE = ("instructions", "copy", "count", "sort", "arithmetic", "recall")


def exercise(family: str, draw: Draw, context_tokens: int, num_questions: int = 1) -> Exercise:
    """One of a family. context_tokens: about so long, for those that may have any length."""
    if family == "recall":
        return recall(draw, max(1, context_tokens // TOKENS_PER_SENTENCE), num_questions)
    return _MAKERS[family](draw)


def drawn(draw: Draw, shares: Mapping[str, float], max_tokens: int) -> Exercise:
    """One by the shares of a stage, alone or as a chain of several turns."""
    family = draw.rng.choices([*shares], [*shares.values()])[0]
    if family == "recall":
        low = min(40, max_tokens // 2)
        length = int(low * (max_tokens / low) ** draw.rng.random() * 0.8)
        most = max(1, min(12, length // 60))
        return exercise(family, draw, length, draw.between(1, most))
    if family in _CHAINABLE and draw.chance(0.25):
        return _chain(draw, shares)
    return exercise(family, draw, 0)


def _chain(draw: Draw, shares: Mapping[str, float]) -> Exercise:
    """Several small ones in one conversation, none of them thought about."""
    families = [family for family in _CHAINABLE if shares.get(family)]
    parts: list[Exercise] = []
    while len(parts) < 3:
        part = exercise(draw.one(families), draw, draw.between(20, 60))
        has_head = part.turns[0].messages[0]["role"] == "system"
        if not (part.thinks or has_head):
            parts.append(part)
    return Exercise("chain", tuple(turn for part in parts for turn in part.turns))
