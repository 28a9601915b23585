"""A decode step, before and after its tokens are known.

While a step's forward runs, two things happen beside it: the step before is told (`Committed`), and
how this step's rows will be drawn is made ready (`Planned`). What the next forward needs of a token
(that the sequence goes on, and with which row) is done before that forward starts, so no forward
ever runs a row of a sequence that has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rorqual_decode.generation import Emission
from rorqual_decode.running import CompletedBlock, Running
from rorqual_decode.sampling import Draws, Walk, begin_walks, prepare_draws


@dataclass(slots=True)
class Planned:
    """Rows that a forward runs now: their tokens are not there yet. The sequences are as the step
    before left them, plus guesses."""

    walks: list[Walk]
    num_rows: int
    kv_tokens: int

    @classmethod
    def of(cls, sequences: Sequence[Running]) -> Planned:
        return cls(
            begin_walks(sequences),
            num_rows=sum(sequence.num_rows for sequence in sequences),
            kv_tokens=sum(sequence.next_position for sequence in sequences),
        )

    def prepare(self, vocab_size: int) -> Draws:
        """Masks, penalties and noise of the rows; needs no logits."""
        return prepare_draws(self.walks, vocab_size)


@dataclass(slots=True)
class Committed:
    """Tokens that their sequences have, and that nobody else has been told of yet."""

    walks: Sequence[Walk] = ()
    blocks: list[tuple[Running, CompletedBlock]] = field(default_factory=list)
    """Completed by the step, with the sequences that still hold their pages."""
    left: list[Running] = field(default_factory=list)
    """Sequences that ended or were cancelled; their pages are held until everybody is told."""
    out: list[Running] = field(default_factory=list)
    """Taken out as they are: theirs are somebody else's then."""

    @classmethod
    def of(cls, walks: Sequence[Walk]) -> Committed:
        sequences = [walk.sequence for walk in walks]
        return cls(
            walks,
            blocks=[(s, block) for s in sequences for block in s.completed],
            left=[walk.sequence for walk in walks if walk.finish is not None],
        )

    def emissions(self) -> list[Emission]:
        """What to tell."""
        return [walk.emission() for walk in self.walks]
