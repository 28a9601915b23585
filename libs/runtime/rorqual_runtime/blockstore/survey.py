"""Looking at a few slots of every segment, to find where there is or could be room."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, overload

import numpy as np

from rorqual_runtime.blockstore.entries import ENTRY_BYTES, ENTRY_DTYPE, Entry, SlotState
from rorqual_runtime.blockstore.segment import Segment

SURVEY_SLOTS = 1024
"""Slots that one survey looks at: a small store's all."""


class Candidate(NamedTuple):
    """A stored block as eviction sees it."""

    slot: int
    num_bytes: int
    last_used_unix_s: float
    expires_unix_s: float | None
    num_uses: int
    depth: int


def candidate_of(slot: int, entry: Entry) -> Candidate:
    """The block of one slot."""
    expires_unix_s = float(entry.expires_s) or None
    last_unix_s = float(entry.used_s)
    return Candidate(
        slot, entry.num_bytes, last_unix_s, expires_unix_s, entry.num_uses, entry.mark.depth
    )


class EvictionPolicy(Protocol):
    """Which blocks leave a full store: see `rorqual_policy.ValueEviction`. A block of infinite
    value is held: it stays."""

    def block_value(self, block: Candidate, now_unix_s: float) -> float: ...

    def choose_victims(
        self, blocks: Sequence[Candidate], *, now_unix_s: float, num_wanted: int
    ) -> list[int]: ...

    def rank_segments(
        self, segments: Sequence[Sequence[Candidate]], *, now_unix_s: float
    ) -> list[tuple[int, float]]: ...

    def choose_segment_to_drop(
        self, victims_value: float | None, segment_values: Sequence[float]
    ) -> int | None: ...


class Blocks(Sequence[Candidate]):
    """Made when they are looked at: thousands of kept ones would have Python look for garbage all
    the time. (It leaves plain tuples of numbers alone.)"""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        """rows: the fields of each."""
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Candidate]:
        return map(Candidate._make, self._rows)

    @overload
    def __getitem__(self, index: int) -> Candidate: ...

    @overload
    def __getitem__(self, index: slice) -> Blocks: ...

    def __getitem__(self, index: int | slice) -> Candidate | Blocks:
        if isinstance(index, slice):
            return Blocks(self._rows[index])
        return Candidate._make(self._rows[index])


@dataclass(frozen=True, slots=True)
class Sample:
    """Some neighbouring slots of a segment."""

    segment: Segment
    num_slots: int
    blocks: Blocks

    @property
    def free_share(self) -> float:
        return 1.0 - len(self.blocks) / self.num_slots


def survey(segments: Sequence[Segment], max_slots: int, dice: random.Random) -> list[Sample]:
    """Samples of all segments, max_slots in all but at least one each. Raises: OSError."""
    most = max(1, max_slots // max(1, len(segments)))
    raw, slots, counts = bytearray(), list[int](), list[int]()
    for segment in segments:
        first = dice.randrange(max(1, segment.shape.num_slots - most + 1))
        raw += segment.raw_entries(first, most)
        counts.append(len(raw) // ENTRY_BYTES - len(slots))
        slots += range(first, first + counts[-1])
    table = np.frombuffer(raw, ENTRY_DTYPE)  # of all at once: it takes a few calls a column
    used = np.nonzero(table["state"] == SlotState.VALID)[0]
    rows = list(zip(np.array(slots, np.int64)[used].tolist(), *_hints(table[used]), strict=True))
    ends = np.searchsorted(used, np.cumsum(counts)).tolist()
    return [
        Sample(segment, count, Blocks(rows[start:end]))
        for segment, count, (start, end) in zip(segments, counts, pairwise([0, *ends]), strict=True)
    ]


def sample_of(segment: Segment, max_slots: int, dice: random.Random) -> Sample:
    """max_slots neighbouring slots, or the whole segment. Raises: OSError."""
    return survey([segment], max_slots, dice)[0]


def _hints(rows: np.ndarray[Any, Any]) -> list[list[Any]]:
    """What a `Candidate` takes after its slot, column by column."""
    return [
        rows["num_bytes"].tolist(),
        rows["used"].astype(np.float64).tolist(),
        [expires or None for expires in rows["expires"].astype(np.float64).tolist()],
        rows["uses"].tolist(),
        rows["depth"].tolist(),
    ]
