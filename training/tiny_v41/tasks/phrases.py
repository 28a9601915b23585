"""Short instructions."""

from __future__ import annotations

from training.tiny_v41.tasks import words
from training.tiny_v41.tasks.draw import Draw
from training.tiny_v41.tasks.exercise import Answer, Exercise, Json, Turn, system, user

_GREETINGS = ("Hello", "Good morning", "Welcome", "Goodbye", "Thank you")
_CLASSES = {"animal": words.ANIMALS, "food": words.FOODS, "colour": words.COLOURS}


def instruction(draw: Draw) -> Exercise:
    makers = (_greet, _spell, _capitals, _compare, _class_of, _yes_no, _role, _who, _sentence)
    return draw.one(makers)(draw)


def _asked(question: str, answer: str, before: str = "", reasoning: str = "") -> Exercise:
    messages: tuple[Json, ...] = (user(question),)
    if before:
        messages = (system(before), *messages)
    turn = Turn(messages, Answer(answer, reasoning=reasoning))
    return Exercise("instructions", (turn,), thinks=bool(reasoning))


def _greet(draw: Draw) -> Exercise:
    name, greeting = draw.name(), draw.one(_GREETINGS)
    question = draw.one(("Say {0} to {1}.", "Write a line with {0} for {1}.", "{0}, to {1}!"))
    reasoning = f"I say {greeting} to {name}." if draw.chance(0.3) else ""
    return _asked(question.format(greeting, name), f"{greeting}, {name}!", reasoning=reasoning)


def _spell(draw: Draw) -> Exercise:
    word = draw.one((draw.name().lower(), draw.one(words.WORDS)))
    return _asked(f"Spell the word {word}.", " ".join(word))


def _capitals(draw: Draw) -> Exercise:
    word = draw.one(words.WORDS)
    return _asked(f"Write {word} in capitals.", word.upper())


def _compare(draw: Draw) -> Exercise:
    a, b = draw.on_side(lambda: tuple(draw.some(range(100), 2)), str)
    is_larger = draw.chance(0.5)
    word = "larger" if is_larger else "smaller"
    reasoning = f"{min(a, b)} is less than {max(a, b)}." if draw.chance(0.4) else ""
    answer = str(max(a, b) if is_larger else min(a, b))
    return _asked(f"Which is {word}, {a} or {b}?", answer, reasoning=reasoning)


def _class_of(draw: Draw) -> Exercise:
    kind = draw.one(sorted(_CLASSES))
    word = draw.one(_CLASSES[kind])
    return _asked(f"Is {word} an animal, a food or a colour?", f"{word} is {_article(kind)}.")


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "animal" else f"a {kind}"


def _yes_no(draw: Draw) -> Exercise:
    a, b = draw.on_side(lambda: (draw.below(100), draw.below(100)), str)
    answer = "Yes" if a > b else "No"
    reasoning = f"I compare {a} and {b}." if draw.chance(0.3) else ""
    question = f"Answer yes or no: is {a} more than {b}?"
    return _asked(question, answer, reasoning=reasoning)


def _role(draw: Draw) -> Exercise:
    word, name = draw.one(words.WORDS), draw.name()
    before = draw.one(
        (
            f"Begin every answer with the word {word}.",
            f"Your answers always start with {word}.",
        )
    )
    return _asked(f"Say hello to {name}.", f"{word}: Hello, {name}!", before)


def _who(draw: Draw) -> Exercise:
    name = draw.name()
    question = draw.one(("Who are you?", "What is your name?", "Tell me your name."))
    return _asked(question, f"I am {name}.", f"You are {name}.")


def _sentence(draw: Draw) -> Exercise:
    name, thing, place = draw.name(), draw.one(words.THINGS), draw.one(words.PLACES)
    question = f"Write a sentence with {name}, {thing} and {place}."
    return _asked(question, f"{name} has a {thing} at the {place}.")
