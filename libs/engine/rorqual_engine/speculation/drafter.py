"""What a drafter is: it may guess anything, for the model's own draw decides what is taken.

A guess is taken where it equals the token that the model draws at its place with the noise of that
place. So tokens, sampled ones as well, are those of a run without guesses, bit by bit, whatever the
drafter looks at: a poor one costs time, never correctness.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rorqual_engine.sampling import SamplingState


class Guesses(NamedTuple):
    """Tokens that may follow a sequence's last one; possibly none."""

    token_ids: Sequence[int]
    confidences: Sequence[float]
    """Of each: the chance that it is taken when all before it are."""


NO_GUESSES = Guesses((), ())


class Memory:
    """What a drafter keeps of one sequence. This one keeps nothing."""

    def note_tokens(self, token_ids: Sequence[int]) -> None:
        """The sequence has grown by these."""

    def note_verdict(self, num_tried: int, num_taken: int) -> None:
        """So many of the last guesses were checked, and the first so many of them taken."""


@dataclass(frozen=True)
class GuessRequest:
    """One sequence that could use guesses."""

    memory: Memory
    """From this drafter's `open`."""
    token_id: int
    """Its last token, which the model has not run."""
    position: int
    """Of the token behind that one: where the first guess belongs."""
    sampling: SamplingState
    """How that token is drawn."""
    window: int | None
    """Its window slot, where the model has such."""
    num_wanted: int
    """More guesses than that are of no use; > 0."""
    pages: Sequence[int] = ()
    """Its pages, with room for the guesses that a step may check."""


class Drafter(ABC):
    """Guesses for several sequences at once. Called from the engine thread only, but for `open`."""

    name: str
    num_guesses: int
    """Most that one sequence gets; 0 = never any."""

    def open(self, prompt_ids: Any) -> Memory:
        """For a sequence that begins with these ids, int [n]. Any thread."""
        return Memory()

    @abstractmethod
    def guess(self, requests: Sequence[GuessRequest]) -> list[Guesses]:
        """For each request at most num_guesses and at most what it wants; at least one request."""


class NoDrafter(Drafter):
    """Every step gives one token."""

    name, num_guesses = "none", 0

    def guess(self, requests: Sequence[GuessRequest]) -> list[Guesses]:
        return [NO_GUESSES] * len(requests)
