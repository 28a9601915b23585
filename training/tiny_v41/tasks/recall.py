"""Facts anywhere in a context, and questions about them."""

from __future__ import annotations

from dataclasses import dataclass

from training.tiny_v41.tasks import words
from training.tiny_v41.tasks.draw import Draw
from training.tiny_v41.tasks.exercise import Answer, Exercise, Json, Turn, system, user

_ASKS = (
    "What is the {0} of {1}?",
    "Tell me the {0} of {1}.",
    "I need the {0} of {1}.",
    "{1}: what is the {0}?",
    "Which {0} belongs to {1}?",
)
_OPENINGS = ("Remember these notes.", "Here are some facts.", "Read this text.", "Notes:", "")


@dataclass(frozen=True)
class Fact:
    attribute: str
    name: str
    value: str

    @property
    def sentence(self) -> str:
        return f"The {self.attribute} of {self.name} is {self.value}."


def draw_facts(draw: Draw, count: int) -> list[Fact]:
    """No two with the same attribute and name; some names have several attributes."""
    names = draw.names(max(1, (count + draw.below(count + 1)) // 2))
    facts: dict[tuple[str, str], Fact] = {}
    while len(facts) < count:
        fact = _fact(draw, draw.one(names))
        facts.setdefault((fact.attribute, fact.name), fact)
        if draw.chance(0.2):
            names.append(draw.name())
    return list(facts.values())


def _fact(draw: Draw, name: str) -> Fact:
    if draw.chance(0.5):
        return Fact(draw.one(words.ATTRIBUTES_OF_CODE), name, draw.code(draw.between(2, 5)))
    if draw.chance(0.2):
        return Fact("friend", name, draw.name())
    attribute = draw.one(sorted(words.ATTRIBUTES_OF_WORD))
    return Fact(attribute, name, draw.one(words.ATTRIBUTES_OF_WORD[attribute]))


def filler(draw: Draw) -> str:
    """A sentence that nobody asks about."""
    who = draw.one(
        (f"The {draw.one(words.QUALITIES)} {draw.one(words.ANIMALS)}", draw.name(), "Somebody")
    )
    what = f"the {draw.one(words.QUALITIES)} {draw.one(words.THINGS)}"
    where = f"near the {draw.one(words.PLACES)}" if draw.chance(0.5) else draw.one(words.WHEN)
    return f"{who} {draw.one(words.VERBS_PAST)} {what} {where}."


def recall(draw: Draw, num_sentences: int, num_questions: int = 1) -> Exercise:
    """num_sentences: of the context, facts and others."""
    share = draw.one((0.15, 0.4, 1.0)) if num_sentences > 4 else 1.0
    num_facts = max(min(2, num_sentences), round(share * num_sentences))
    facts = draw_facts(draw, num_facts)
    fillers = [filler(draw) for _ in range(num_sentences - num_facts)]
    lines = [fact.sentence for fact in facts] + fillers
    order = list(range(len(lines)))
    draw.rng.shuffle(order)
    asked = draw.some(facts, min(num_questions, num_facts))
    text = (draw.one((" ", "\n"))).join(lines[place] for place in order)
    return Exercise("recall", _turns(draw, text, asked))


def _turns(draw: Draw, text: str, asked: list[Fact]) -> tuple[Turn, ...]:
    opening = draw.one(_OPENINGS)
    context = f"{opening}\n{text}" if opening else text
    first: list[Json] = []
    if draw.chance(0.3):
        first.append(system(context))
    turns = []
    for place, fact in enumerate(asked):
        question = draw.one(_ASKS).format(fact.attribute, fact.name)
        if place == 0 and not first:
            question = f"{context}\n\n{question}"
        messages = (*first, user(question)) if place == 0 else (user(question),)
        turns.append(Turn(messages, Answer(fact.sentence, key=fact.value)))
    return tuple(turns)
