"""Order of a choice's deltas: what is new, what was seen, what is missing."""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, TypeVar

Delta = TypeVar("Delta")


class Arrival(Enum):
    """What to do with a delta."""

    NEXT = auto()
    DUPLICATE = auto()
    EARLY = auto()


@dataclass(slots=True)
class DeltaOrder(Generic[Delta]):
    """Position in one choice's token stream.

    next_seq: index of the token awaited. decode_id, incarnation: who sent last; an older
    incarnation of the same instance is never listened to again. run: the highest that is known;
    earlier ones don't count any more.
    """

    max_early: int
    next_seq: int = 0
    decode_id: str = ""
    incarnation: int = 0
    run: int = 0
    early: dict[int, Delta] = field(default_factory=dict)

    @property
    def has_gap(self) -> bool:
        """Something is kept, and what precedes it is not here."""
        return bool(self.early) and min(self.early) > self.next_seq

    def accept_sender(self, decode_id: str, incarnation: int, run: int = 0) -> bool:
        """False for the former self of a restarted instance, and for an earlier run. An empty id is
        prefill's, which tells a first token before any instance has the prompt."""
        if run < self.run:
            return False
        if not decode_id:
            return True
        if decode_id == self.decode_id and incarnation < self.incarnation:
            return False
        self.decode_id, self.incarnation, self.run = decode_id, incarnation, run
        return True

    def begin_run(self, run: int) -> None:
        """It was lost, and is started again: whoever sends next is heard."""
        self.run = run
        self.decode_id = ""

    def classify(self, seq: int, num_tokens: int, *, is_final: bool) -> Arrival:
        """Where a delta of tokens [seq, seq + num_tokens) stands."""
        if seq > self.next_seq:
            return Arrival.EARLY
        end = seq + num_tokens
        if end > self.next_seq or (is_final and end == self.next_seq):
            return Arrival.NEXT
        return Arrival.DUPLICATE

    def keep_early(self, seq: int, delta: Delta) -> None:
        """Hold a delta until the gap before it is filled. Too many are no loss: they come again
        with what is missing."""
        if len(self.early) < self.max_early:
            self.early[seq] = delta

    def pop_ready(self) -> Delta | None:
        """A kept delta that now continues the stream, or repeats it; None when there is none."""
        seq = min(self.early, default=None)
        if seq is None or seq > self.next_seq:
            return None
        return self.early.pop(seq)
