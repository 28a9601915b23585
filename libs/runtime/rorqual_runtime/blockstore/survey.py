"""Looking at a few slots of every segment, to find where there is or could be room."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, Protocol

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


@dataclass(frozen=True, slots=True)
class Sample:
    """Some neighbouring slots of a segment."""

    segment: Segment
    num_slots: int
    blocks: list[Candidate]

    @property
    def free_share(self) -> float:
        return 1.0 - len(self.blocks) / self.num_slots


def survey(segments: Sequence[Segment], max_slots: int, dice: random.Random) -> list[Sample]:
    """Samples of all segments, max_slots in all but at least one each. Raises: OSError."""
    count = max(1, max_slots // max(1, len(segments)))
    samples: list[Sample] = []
    spots: list[tuple[Sample, int]] = []
    raw = bytearray()
    for segment in segments:
        first = dice.randrange(max(1, segment.shape.num_slots - count + 1))
        raw += segment.raw_entries(first, count)
        num_slots = len(raw) // ENTRY_BYTES - len(spots)
        samples.append(Sample(segment, num_slots, []))
        spots += zip(repeat(samples[-1]), range(first, first + num_slots), strict=False)
    rows = np.frombuffer(raw, ENTRY_DTYPE)  # all at once: it takes a call a column
    used = np.nonzero(rows["state"] == SlotState.VALID)[0]
    for row, *hints in zip(used.tolist(), *_hints(rows[used]), strict=True):
        sample, slot = spots[row]
        sample.blocks.append(Candidate(slot, *hints))
    return samples


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
