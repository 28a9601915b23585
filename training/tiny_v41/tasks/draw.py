"""Chance with a wall in it: what is drawn for training is never drawn for held-out tasks."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from training.tiny_v41.tasks import words

T = TypeVar("T")
_SHARE = 8
"""One of so many names, numbers and layouts is kept for held-out tasks."""


def is_held_out(text: str) -> bool:
    """Which side of the wall a name, a number or a layout stands on."""
    return hashlib.blake2b(text.encode(), digest_size=2).digest()[0] % _SHARE == 0


class Draw:
    """Draws of one exercise; the same seed, the same draws."""

    def __init__(self, seed: str, *, held_out: bool) -> None:
        self.rng, self.held_out = random.Random(f"{held_out}|{seed}"), held_out

    def on_side(self, make: Callable[[], T], spell: Callable[[T], str] = str) -> T:
        """The first of what make draws that is on this side of the wall."""
        for _ in range(1000):
            made = make()
            if is_held_out(spell(made)) == self.held_out:
                return made
        raise AssertionError("everything drawn is on the other side")

    def one(self, choices: Sequence[T]) -> T:
        return self.rng.choice(choices)

    def some(self, choices: Sequence[T], count: int) -> list[T]:
        """Different ones."""
        return self.rng.sample(choices, count)

    def below(self, limit: int) -> int:
        return self.rng.randrange(limit)

    def between(self, low: int, high: int) -> int:
        """Both ends included."""
        return self.rng.randint(low, high)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def name(self) -> str:
        """A made-up name, capitalised."""
        return self.on_side(self._name)

    def _name(self) -> str:
        count = 3 if self.chance(0.3) else 2
        parts = [self.one(words.ONSETS) + self.one(words.VOWELS) for _ in range(count)]
        return ("".join(parts) + self.one(words.CODAS)).capitalize()

    def code(self, digits: int) -> str:
        """Digits, the first of them no zero."""
        low = 10 ** (digits - 1)
        return self.on_side(lambda: str(self.between(low, 10 * low - 1)))

    def names(self, count: int) -> list[str]:
        """Different ones."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.name()] = None
        return list(found)
