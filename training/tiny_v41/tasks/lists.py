"""Lists: copied, counted, sorted, reversed, picked from."""

from __future__ import annotations

from training.tiny_v41.tasks import words
from training.tiny_v41.tasks.draw import Draw
from training.tiny_v41.tasks.exercise import Answer, Exercise, Turn, user

_KINDS = {
    "copy": ("Repeat this: {0}", "Copy the list: {0}", "Say exactly this: {0}", "Write again: {0}"),
    "reverse": ("Reverse the list: {0}", "Write this backwards, item by item: {0}"),
    "first": ("What is the first item? {0}", "Give me the first of these: {0}"),
    "last": ("What is the last item? {0}", "Give me the last of these: {0}"),
}


def _items(draw: Draw, low: int, high: int) -> list[str]:
    def make() -> list[str]:
        count = draw.between(low, high)
        kind = draw.below(4)
        if kind == 0:
            return [str(draw.below(100)) for _ in range(count)]
        if kind == 1:
            return [draw.name() for _ in range(count)]
        pool = words.WORDS if kind == 2 else draw.one((words.ANIMALS, words.FOODS, words.THINGS))
        return [draw.one(pool) for _ in range(count)]

    return draw.on_side(make, ", ".join)


def _one(family: str, question: str, answer: Answer, *, thinks: bool = False) -> Exercise:
    return Exercise(family, (Turn((user(question),), answer),), thinks=thinks)


def copying(draw: Draw, longest: int = 12) -> Exercise:
    """Copy, reverse, first, last."""
    kind = draw.one(("copy", "copy", "reverse", "first", "last"))
    items = _items(draw, 2, longest if kind != "reverse" else min(longest, 7))
    joiner = draw.one((", ", " ")) if kind != "reverse" else ", "
    shown = joiner.join(items)
    said = {"copy": shown, "reverse": ", ".join(reversed(items)), "first": items[0]}
    question = draw.one(_KINDS[kind]).format(shown)
    return _one("copy", question, Answer(said.get(kind, items[-1])))


def repeating(draw: Draw) -> Exercise:
    """Long lists of everything that may have to be copied, word for word."""
    items = draw.on_side(lambda: [_any_item(draw) for _ in range(draw.between(3, 24))], ", ".join)
    shown = draw.one((", ", " ", "\n")).join(items)
    return _one("repeat", draw.one(_KINDS["copy"]).format(shown), Answer(shown))


def _any_item(draw: Draw) -> str:
    kind = draw.below(4)
    if kind == 0:
        return draw.name()
    return draw.code(draw.between(2, 5)) if kind == 1 else draw.one(words.WORDS)


def counting(draw: Draw) -> Exercise:
    """Items of a list, or how often one of them occurs."""
    thinks = draw.chance(0.4)
    if draw.chance(0.5):
        items = _items(draw, 1, 10)
        question = draw.one(
            ("How many items are there? {0}", "Count the items: {0}", "How long is the list {0}?")
        )
        steps = ", ".join(f"{number} {item}" for number, item in enumerate(items, start=1))
        answer = Answer(str(len(items)), reasoning=f"I count: {steps}." if thinks else "")
        return _one("count", question.format(", ".join(items)), answer, thinks=thinks)
    pool = draw.some(words.THINGS + words.ANIMALS, 3)
    items = draw.on_side(lambda: [draw.one(pool) for _ in range(draw.between(3, 10))], " ".join)
    wanted = draw.one(items)
    question = f"How often does {wanted} occur in: {' '.join(items)}"
    counted: list[str] = []
    count = 0
    for item in items:
        count += item == wanted
        counted.append(f"{item} {count}")
    reasoning = f"I count {wanted}: {', '.join(counted)}." if thinks else ""
    return _one("count", question, Answer(str(count), reasoning=reasoning), thinks=thinks)


def sorting(draw: Draw) -> Exercise:
    """Numbers by size, words by the alphabet."""
    thinks = draw.chance(0.4)
    if draw.chance(0.6):
        numbers = draw.on_side(
            lambda: draw.some(range(100), draw.between(2, 6)), lambda n: " ".join(map(str, n))
        )
        is_down = draw.chance(0.3)
        ordered = [str(n) for n in sorted(numbers, reverse=is_down)]
        shown = ", ".join(map(str, numbers))
        order = "from large to small" if is_down else draw.one(("", "from small to large"))
        question = f"Sort these numbers {order}: {shown}".replace(" :", ":")
    else:
        items = draw.on_side(lambda: draw.some(words.WORDS, draw.between(2, 5)), " ".join)
        ordered, shown = sorted(items), ", ".join(items)
        question = f"Sort these words by the alphabet: {shown}"
        is_down = False
    reasoning = _picking(shown.split(", "), ordered) if thinks else ""
    return _one("sort", question, Answer(", ".join(ordered), reasoning=reasoning), thinks=thinks)


def _picking(items: list[str], ordered: list[str]) -> str:
    """One item after the other, and what is left."""
    left, steps = list(items), []
    for item in ordered[:-1]:
        left.remove(item)
        steps.append(f"Next {item}, left {' '.join(left)}.")
    return " ".join(steps)
