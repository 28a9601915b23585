"""Looking at a few slots of every segment, to find where there is or could be room."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    firsts = [dice.randrange(max(1, one.shape.num_slots - count + 1)) for one in segments]
    raws = [one.raw_entries(first, count) for one, first in zip(segments, firsts, strict=True)]
    samples = [
        Sample(one, len(raw) // ENTRY_BYTES, []) for one, raw in zip(segments, raws, strict=True)
    ]
    owners = np.repeat(np.arange(len(raws)), [sample.num_slots for sample in samples])
    slots = np.concatenate(
        [
            np.arange(first, first + sample.num_slots)
            for first, sample in zip(firsts, samples, strict=True)
        ]
        or [np.zeros(0, np.int64)]
    )
    rows = np.frombuffer(b"".join(raws), ENTRY_DTYPE)
    used = np.nonzero(rows["state"] == SlotState.VALID)[0]
    blocks = zip(owners[used].tolist(), _candidates(slots, rows, used), strict=True)
    for owner, block in blocks:
        samples[owner].blocks.append(block)
    return samples


def sample_of(segment: Segment, max_slots: int, dice: random.Random) -> Sample:
    """max_slots neighbouring slots, or the whole segment. Raises: OSError."""
    return survey([segment], max_slots, dice)[0]


def _candidates(
    slots: np.ndarray[Any, Any], rows: np.ndarray[Any, Any], used: np.ndarray[Any, Any]
) -> Iterator[Candidate]:
    chosen = rows[used]
    return map(
        Candidate,
        slots[used].tolist(),
        chosen["num_bytes"].tolist(),
        chosen["used"].astype(np.float64).tolist(),
        [expires or None for expires in chosen["expires"].astype(np.float64).tolist()],
        chosen["uses"].tolist(),
        chosen["depth"].tolist(),
    )
