"""How far a drafter's confidences hold here, learnt from what became of its guesses.

A draft module is calibrated once, on texts of its training and on how it was asked then. Other
texts, a temperature, or a module that was never trained make its confidences wrong, and a step that
believes them checks guesses in vain.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

_KEPT = 0.98
"""Of what is known, a step later: some 50 steps count."""
_BELIEVED = 4.0
"""Guesses whose confidences count as borne out before any was checked."""


class DraftTrust(NamedTuple):
    """By place in a block, of guesses checked lately: how many should have been taken by their
    confidences, and how many were. A place that nobody checks is trusted again in time."""

    expected: tuple[float, ...]
    taken: tuple[float, ...]


def full_trust(num_places: int) -> DraftTrust:
    """Before any guess was checked."""
    return DraftTrust((0.0,) * num_places, (0.0,) * num_places)


def note_verdicts(trust: DraftTrust, verdicts: Iterable[tuple[Sequence[float], int]]) -> DraftTrust:
    """After a step. verdicts: of each block, the drafter's confidences of the guesses that were
    checked, and how many of them were taken; those behind the first wrong one tell nothing."""
    expected = [_KEPT * value for value in trust.expected]
    taken = [_KEPT * value for value in trust.taken]
    for confidences, num_taken in verdicts:
        for place, confidence in enumerate(confidences[: num_taken + 1]):
            expected[place] += confidence
            taken[place] += place < num_taken
    return DraftTrust(tuple(expected), tuple(taken))


def trusted_chances(trust: DraftTrust, confidences: Sequence[float]) -> list[float]:
    """What the confidences of one block are worth here, at most 1 each."""
    return [
        min(1.0, confidence * (_BELIEVED + taken) / (_BELIEVED + expected))
        for confidence, expected, taken in zip(confidences, *trust, strict=False)
    ]
