"""Numbers of a generation's runs, and when the instance that runs it counts as lost.

A generation can be running in more than one place for a moment: where it was, and where it goes on
after a move or a loss. Its tokens are the same everywhere, so all that matters is which place
counts: the one with the highest run number.
"""

from dataclasses import dataclass
from enum import StrEnum

MOVES_A_START = 1 << 16
"""Run numbers between two starts: decode numbers its moves, recipe its starts, and neither has to
know what the other does."""
STARTS_A_READER = 64
"""Starts that one reader can number before the next reader's begin."""


def run_after_move(run: int) -> int:
    """Of the generation at its next instance, or here again when a move failed."""
    return run + 1


def run_after_loss(run: int, reader: int = 0) -> int:
    """Of a generation that is started again: higher than any that its earlier starts, moves
    included, can have had.

    run: the highest one that was seen. reader: how often its reader changed; the new one may not
    have seen what the earlier one had started.
    """
    first_start = reader * STARTS_A_READER
    return max(run // MOVES_A_START + 1, first_start) * MOVES_A_START


class Silence(StrEnum):
    """What an instance's silence means."""

    NORMAL = "normal"
    ASK = "ask whether it is there"
    LOST = "go on elsewhere"


@dataclass(frozen=True, slots=True)
class SilenceParams:
    """Seconds of silence, while something runs there, after which an instance ..."""

    ask_s: float = 0.15
    """... is asked."""
    absent_s: float = 0.3
    """... is lost when the broker knows nobody of that name."""
    frozen_s: float = 3.5
    """... is lost when it does not answer: stopped, cut off, or far too slow. Longer than both ends
    take to notice that it is cut off (3 s): it is back then, or absent. Twice as long after each
    loss, so that a fleet that is only overloaded does not drown in repeated work."""


def decide_silence(
    silent_s: float, *, is_absent: bool, num_losses: int, params: SilenceParams
) -> Silence:
    """What to do about an instance that has been silent for so long.

    is_absent: nobody served its name when it was asked last. num_losses: of what runs there, the
    fewest that any generation has had.
    """
    limit_s = params.absent_s if is_absent else params.frozen_s * 2.0 ** min(num_losses, 16)
    if silent_s >= limit_s:
        return Silence.LOST
    return Silence.ASK if silent_s >= params.ask_s else Silence.NORMAL
