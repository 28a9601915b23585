"""Free slots of one size: from segments this process owns, new segments, or evicted blocks."""

from __future__ import annotations

import contextlib
import math
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from rorqual_runtime.blockstore.backend import ForgetReason
from rorqual_runtime.blockstore.entries import FUTURE_S, Entry, SlotState
from rorqual_runtime.blockstore.segment import SCAN_SLOTS, Segment
from rorqual_runtime.blockstore.segment_set import Found, SegmentSet
from rorqual_runtime.blockstore.survey import (
    SURVEY_SLOTS,
    Candidate,
    EvictionPolicy,
    Sample,
    candidate_of,
    sample_of,
    survey,
)

_MIN_FREE_SHARE = 0.25
_EVICTED_SHARE = 4
"""Of a segment's blocks this part goes at once, so that making room is seldom due."""
_LINE_SHARE = 4
"""After this part of the segments they are ranked anew."""
_MAX_DROPPED = 64
_CREATIONS = 3
_NUM_GENERATIONS = 1 << 32


class OwnSlot(NamedTuple):
    """A slot that is this process's to write, for a record of this generation."""

    segment: Segment
    slot: int
    generation: int


@dataclass(slots=True)
class _Owned:
    segment: Segment
    free: deque[tuple[int, int]] = field(default_factory=deque)
    """(slot, last generation)"""
    num_writing: int = 0


class RoomMaker(Protocol):
    """The rest of the store, as the allocator of one size needs it."""

    def new_segment(self, segments: SegmentSet) -> Segment | None:
        """None when the capacity or the disk does not allow one."""
        ...

    def give_way(self, segments: SegmentSet, victims_value: float | None) -> bool:
        """Drop a segment of another size if that is worth less. False: none was."""
        ...

    def now_unix_s(self) -> float: ...


class SlotAllocator:
    """Hands out slots of one size, evicting when there is no room. Safe for threads.

    Only the owner of a segment allocates in it. A process owns segments with free slots only, few
    at a time, so that any process can evict in the others. Methods may raise OSError.
    """

    def __init__(
        self,
        segments: SegmentSet,
        policy: EvictionPolicy,
        room: RoomMaker,
        on_gone: Callable[[Entry, ForgetReason], None],
    ) -> None:
        self._segments = segments
        self._policy = policy
        self._room = room
        self._on_gone = on_gone
        self._owned: dict[int, _Owned] = {}
        self._lock = threading.RLock()
        self._dice = random.Random()
        self._num_taken = 0
        self._num_sweeps = 0
        self._line: deque[Segment] = deque()
        self._num_in_line = 0

    def take(self) -> OwnSlot | None:
        """A slot to write to; `publish` or `give_back` must follow. None: there is no room."""
        with self._lock:
            owned = self._with_free() or self._refilled()
            if owned is None:
                return None
            slot, last = owned.free.popleft()
            owned.num_writing += 1
            self._num_taken += 1
            return OwnSlot(owned.segment, slot, self._next_generation(last))

    def _next_generation(self, last: int) -> int:
        """Any other than the last. Counting would not do: a process that withdraws a block just as
        its slot is used anew puts the entry, and with it the count, back."""
        return (last + 1 + self._dice.getrandbits(31)) % _NUM_GENERATIONS

    def publish(self, own: OwnSlot, entry: Entry) -> None:
        """The record is written: make it visible. After an error the slot is still the caller's."""
        self._segments.publish(own.segment, own.slot, entry)
        with self._lock:
            self._written(own.segment)

    def give_back(self, own: OwnSlot) -> None:
        """Nothing came of it."""
        with self._lock:
            with contextlib.suppress(OSError):  # it may have been published half
                own.segment.free(own.slot, own.generation)
            owned = self._owned.get(own.segment.number)
            if owned is not None:
                owned.free.append((own.slot, own.generation))
            self._written(own.segment)

    def withdraw(self, found: Found, reason: ForgetReason | None) -> bool:
        """Take a block out of the store. reason: to be told to others. False: it had gone."""
        with self._lock:
            if not self._segments.withdraw(found):
                return False
            owned = self._owned.get(found.segment.number)
            if owned is not None:
                owned.free.append((found.slot, found.entry.generation))
        if reason is not None:
            self._on_gone(found.entry, reason)
        return True

    def extend(self, found: Found, expires_s: int) -> bool:
        """Let the block expire then. False: another process allocates there and might use the slot
        anew meanwhile, or the block had gone."""
        segment, slot, entry = found
        with self._lock:
            if not segment.own():
                return False
            try:
                now = segment.entry(slot)
                if now is None or now.generation != entry.generation:
                    return False
                segment.publish(slot, now._replace(expires_s=expires_s))
                return True
            finally:
                if segment.number not in self._owned:
                    segment.disown()

    def sample(self) -> list[Sample]:
        """A few slots of every segment."""
        return survey(self._segments.segments(), SURVEY_SLOTS, self._dice)

    def sweep(self, *, everything: bool = False) -> None:
        """Remove what has expired from the next segment in turn, or from all; and a segment
        altogether that nobody uses."""
        with self._lock:
            segments = sorted(self._segments.segments(), key=lambda segment: segment.number)
            if segments and not everything:
                segments = [segments[self._num_sweeps % len(segments)]]
            self._num_sweeps += 1
            for segment in segments:
                self._sweep(segment)

    def release_idle(self) -> None:
        """Let go of the segments of a size that is not written to any more: call it now and then.

        Two calls without a `take` in between do it."""
        with self._lock:
            if self._num_taken == 0:
                self.close()
            self._num_taken = 0

    def drop_segment(self, segment: Segment) -> bool:
        """Delete a whole segment unless somebody works with it, or holds a block of it; never waits
        for them."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if segment.number in self._owned or not segment.own():
                return False
            if self._has_held(segment):
                return False
            for found in self._segments.blocks_of(segment):
                self._on_gone(found.entry, "evicted")
            self._segments.forget_segment(segment)
            return True
        finally:
            if segment.number not in self._owned:
                segment.disown()
            self._lock.release()

    def refresh(self) -> None:
        with self._lock:
            self._segments.refresh()
            for number, owned in list(self._owned.items()):
                if owned.segment.is_removed():
                    del self._owned[number]

    def close(self) -> None:
        """Let go of every segment nobody writes to."""
        with self._lock:
            for owned in list(self._owned.values()):
                if not owned.num_writing:
                    self._let_go(owned)

    def _with_free(self) -> _Owned | None:
        for owned in self._owned.values():
            if owned.free:
                return owned
        return None

    def _refilled(self) -> _Owned | None:
        """A segment with free slots: one that lies idle, a new one, or one made room in."""
        if (owned := self._reclaimed()) is not None:
            return owned
        samples = self.sample()
        for sample in sorted(samples, key=lambda s: s.free_share, reverse=True):
            if sample.free_share < _MIN_FREE_SHARE:
                break
            owned = self._adopt(sample.segment)
            if owned is not None and self._has_room(owned):
                return owned
        return self._created() or self._given(self._rank(samples)) or self._reclaimed()

    def _created(self) -> _Owned | None:
        """A new segment; tried again where another process was quicker to own it, or to fill it."""
        for _ in range(_CREATIONS):
            segment = self._room.new_segment(self._segments)
            if segment is None:
                return None
            owned = self._adopt(segment)
            if owned is not None and self._has_room(owned):
                return owned
        return None

    def _adopt(self, segment: Segment) -> _Owned | None:
        """Own the segment and know its free slots. None: somebody else owns it."""
        if segment.number in self._owned:
            return self._owned[segment.number]
        if not segment.own():
            return None
        try:
            if segment.is_dirty():  # its last owner was killed
                self._segments.reindex(segment)
            segment.set_dirty(True)
            owned = _Owned(segment, _free_slots(segment))
        except BaseException:
            segment.disown()
            raise
        self._owned[segment.number] = owned
        return owned

    def _has_room(self, owned: _Owned) -> bool:
        """Whether there are free slots; a segment without is let go of, for others to evict in."""
        if not owned.free and not owned.num_writing:
            self._let_go(owned)
        return bool(owned.free)

    def _let_go(self, owned: _Owned) -> None:
        del self._owned[owned.segment.number]
        with contextlib.suppress(OSError):
            owned.segment.set_dirty(False)
        owned.segment.disown()

    def _written(self, segment: Segment) -> None:
        owned = self._owned.get(segment.number)
        if owned is not None:
            owned.num_writing -= 1
            self._has_room(owned)

    def _rank(self, samples: list[Sample]) -> float | None:
        """Line the segments up for eviction, the least valuable first. Returns the value of the
        blocks that would go first."""
        ranks = self._policy.rank_segments(
            [sample.blocks for sample in samples], now_unix_s=self._room.now_unix_s()
        )
        self._line = deque(samples[index].segment for index, _ in ranks)
        self._num_in_line = max(1, len(ranks) // _LINE_SHARE)
        return ranks[0][1] if ranks else None

    def _reclaimed(self) -> _Owned | None:
        """The next segment in line, its least valuable blocks evicted. None: rank them anew."""
        while self._line and self._num_in_line > 0:
            segment = self._line.popleft()
            owned = None if segment.is_removed() else self._adopt(segment)
            if owned is None:
                continue  # somebody else works there
            self._num_in_line -= 1
            self._evict_share(owned)
            if self._has_room(owned):
                return owned
        return None

    def _given(self, victims_value: float | None) -> _Owned | None:
        """A new segment in place of less valuable ones of other sizes."""
        for _ in range(_MAX_DROPPED):
            if not self._room.give_way(self._segments, victims_value):
                return None
            if (created := self._created()) is not None:
                self._num_in_line = 0  # there may be more of that
                return created
        return None

    def _evict_share(self, owned: _Owned) -> None:
        now_unix_s = self._room.now_unix_s()
        blocks = sample_of(owned.segment, SURVEY_SLOTS, self._dice).blocks
        wanted = max(1, len(blocks) // _EVICTED_SHARE)
        order = self._policy.choose_victims(blocks, now_unix_s=now_unix_s, num_wanted=wanted)
        slots = [blocks[index].slot for index in order]
        for slot, entry in zip(slots, owned.segment.entries(slots), strict=True):
            self._evict(owned, slot, entry, now_unix_s)

    def _evict(self, owned: _Owned, slot: int, entry: Entry | None, now_unix_s: float) -> None:
        if entry is None:
            if owned.segment.scrap(slot):
                owned.free.append((slot, 0))
        elif entry.used_s <= now_unix_s or not self._is_held(candidate_of(slot, entry)):
            self._segments.remove(Found(owned.segment, slot, entry))
            owned.free.append((slot, entry.generation))
            self._on_gone(entry, "expired" if entry.is_due(now_unix_s) else "evicted")

    def _has_held(self, segment: Segment) -> bool:
        blocks = sample_of(segment, segment.shape.num_slots, self._dice).blocks
        return any(self._is_held(block) for block in blocks)

    def _is_held(self, block: Candidate) -> bool:
        return self._policy.block_value(block, self._room.now_unix_s()) == math.inf

    def _sweep(self, segment: Segment) -> None:
        if not segment.own():
            return
        is_in_use = segment.number in self._owned
        try:
            num_left = self._expire(segment)
            if not is_in_use and not num_left:
                self._segments.forget_segment(segment)
        finally:
            if not is_in_use:
                segment.disown()

    def _expire(self, segment: Segment) -> int:
        """Returns how many blocks are left in the segment."""
        now_unix_s = self._room.now_unix_s()
        num_left = 0
        for first in range(0, segment.shape.num_slots, SCAN_SLOTS):
            rows = segment.scan(first, SCAN_SLOTS)
            is_valid = rows["state"] == SlotState.VALID
            is_over = (rows["expires"] != 0) & (rows["expires"] <= now_unix_s)
            is_due = is_valid & (is_over | (rows["created"] > now_unix_s + FUTURE_S))
            num_left += int(is_valid.sum() - is_due.sum())
            for slot in (np.nonzero(is_due)[0] + first).tolist():
                entry = segment.entry(slot)
                if entry is not None:
                    self.withdraw(Found(segment, slot, entry), "expired")
        return num_left


def _free_slots(segment: Segment) -> deque[tuple[int, int]]:
    free: deque[tuple[int, int]] = deque()
    for first in range(0, segment.shape.num_slots, SCAN_SLOTS):
        rows = segment.scan(first, SCAN_SLOTS)
        indices = np.nonzero(rows["state"] != SlotState.VALID)[0]
        generations = rows["generation"][indices].tolist()
        free.extend(zip((indices + first).tolist(), generations, strict=True))
    return free
