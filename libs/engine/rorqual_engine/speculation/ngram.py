"""Prompt lookup: what followed when the sequence's last few tokens last stood in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rorqual_engine.speculation.drafter import (
    NO_GUESSES,
    Drafter,
    Guesses,
    GuessRequest,
    Memory,
)

SHORTEST = 2
"""Tokens that must have stood there before; the longest match goes first."""
FIRST_RATES = (0.35, 0.45, 0.6, 0.65, 0.75, 0.75, 0.9)
"""How often a guess behind a match of SHORTEST and more tokens is right, before more is known of a
sequence. Source: default model, answers of 250 tokens, between those of temperature 0 (0.61 to
0.95) and 1 (0.26 to 0.5)."""
LONGEST = SHORTEST + len(FIRST_RATES) - 1
LOOK_BACK_TOKENS = 1 << 16
"""So far back at most: 0.1 ms a sequence and step at the worst."""
_RATE_WEIGHT = 0.15


class Match(NamedTuple):
    """The last num_tokens tokens also stood `period` tokens before."""

    num_tokens: int
    period: int


class TokenHistory(Memory):
    """All tokens of one sequence, and how often guesses were right lately, by length of match."""

    def __init__(self, prompt_ids: npt.NDArray[np.integer[Any]]) -> None:
        self._num_tokens = len(prompt_ids)
        self._ids = np.empty(2 * self._num_tokens + 64, np.int32)
        self._ids[: self._num_tokens] = prompt_ids
        self._rates = list(FIRST_RATES)
        self._last_match = SHORTEST

    @property
    def ids(self) -> npt.NDArray[np.int32]:
        return self._ids[: self._num_tokens]

    def note_tokens(self, token_ids: Sequence[int]) -> None:
        end = self._num_tokens + len(token_ids)
        if end > len(self._ids):
            self._ids = np.concatenate([self.ids, np.empty(end, np.int32)])
        self._ids[self._num_tokens : end] = token_ids
        self._num_tokens = end

    def note_verdict(self, num_tried: int, num_taken: int) -> None:
        """A moving average over guesses up to the first wrong one."""
        place = self._last_match - SHORTEST
        for outcome in [1.0] * num_taken + [0.0] * (num_taken < num_tried):
            self._rates[place] += _RATE_WEIGHT * (outcome - self._rates[place])

    def guess(self, count: int) -> Guesses:
        """What came next, count tokens of it."""
        match = find_match(self.ids[-LOOK_BACK_TOKENS:])
        if match is None:
            return NO_GUESSES
        self._last_match = match.num_tokens
        repeated: list[int] = self.ids[-match.period :][:count].tolist()
        while len(repeated) < count:
            repeated += repeated[: count - len(repeated)]
        return Guesses(repeated, [self._rates[match.num_tokens - SHORTEST]] * count)


class NgramDrafter(Drafter):
    """For any model: good where answers quote their prompt or themselves."""

    name = "ngram"

    def __init__(self, num_guesses: int) -> None:
        self.num_guesses = num_guesses

    def open(self, prompt_ids: Any) -> Memory:
        return TokenHistory(prompt_ids)

    def guess(self, requests: Sequence[GuessRequest]) -> list[Guesses]:
        found = []
        for request in requests:
            assert isinstance(request.memory, TokenHistory)
            found.append(request.memory.guess(min(self.num_guesses, request.num_wanted)))
        return found


def find_match(ids: npt.NDArray[np.int32]) -> Match | None:
    """The longest, up to LONGEST, and of these the latest; None where not even SHORTEST do."""
    before = len(ids) - 1
    if before < SHORTEST:
        return None
    ends = np.flatnonzero(ids[:before] == ids[-1])  # ends of what matches so far
    found = None
    for back in range(1, LONGEST):
        ends = ends[ends >= back]
        ends = ends[ids[ends - back] == ids[-1 - back]]
        if not len(ends):
            break
        found = Match(back + 1, before - int(ends[-1]))
    return found
