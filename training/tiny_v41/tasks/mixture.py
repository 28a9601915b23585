"""Which exercises there are, and how often each comes in a stage of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from training.tiny_v41.tasks.arithmetic import arithmetic
from training.tiny_v41.tasks.draw import Draw
from training.tiny_v41.tasks.exercise import Exercise
from training.tiny_v41.tasks.lists import copying, counting, repeating, sorting
from training.tiny_v41.tasks.phrases import instruction
from training.tiny_v41.tasks.recall import recall
from training.tiny_v41.tasks.shapes import shapes
from training.tiny_v41.tasks.structured import json_object
from training.tiny_v41.tasks.tools import calling

TOKENS_PER_SENTENCE = 13
_TOKENS_PER_QUESTION, _MOST_OF_A_CONTEXT, _MOST_OF_A_PICTURE = 25, 24, 4
"""A context that was read once is asked about often: answers are what is learned from."""
_MAKERS: Mapping[str, Callable[[Draw], Exercise]] = {
    "instructions": instruction,
    "copy": copying,
    "count": counting,
    "sort": sorting,
    "arithmetic": arithmetic,
    "tools": calling,
    "json": json_object,
}
FAMILIES = ("recall", *_MAKERS, "shapes")
_CHAINABLE = ("instructions", "copy", "count", "sort", "arithmetic", "recall")


def exercise(family: str, draw: Draw, context_tokens: int, num_questions: int = 1) -> Exercise:
    """One of a family. context_tokens: about so long, for those that may have any length;
    num_questions: about one context or picture, for those that have one."""
    if family == "recall":
        return recall(draw, max(1, context_tokens // TOKENS_PER_SENTENCE), num_questions)
    if family == "shapes":
        return shapes(draw, num_questions)
    if family == "repeat":
        return repeating(draw)
    return _MAKERS[family](draw)


def drawn(draw: Draw, shares: Mapping[str, float], max_tokens: int) -> Exercise:
    """One by the shares of a stage, alone or as a chain of several turns."""
    family = draw.rng.choices([*shares], [*shares.values()])[0]
    if family == "recall":
        low = min(40, max_tokens // 2)
        length = int(low * (max_tokens / low) ** draw.rng.random() * 0.8)
        return exercise(family, draw, length, draw.between(1, _most_questions(length, max_tokens)))
    if family == "shapes":
        return exercise(family, draw, 0, draw.between(1, _MOST_OF_A_PICTURE))
    if family in _CHAINABLE and draw.chance(0.25):
        return _chain(draw, shares)
    return exercise(family, draw, 0)


def _most_questions(context_tokens: int, max_tokens: int) -> int:
    room = min(context_tokens, max_tokens - context_tokens)
    return max(1, min(_MOST_OF_A_CONTEXT, room // _TOKENS_PER_QUESTION))


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
