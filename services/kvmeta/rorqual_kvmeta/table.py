"""An open-addressing table over 16-byte keys, worked on in batches.

Keys are cryptographic hashes, so their own bits are the hash. Four entries make a bucket; a full
bucket overflows into the next one. A look-up ends at the first bucket that was never full, so
removing leaves a grave in a bucket that was, until the table is rebuilt. The first halves of the
keys lie apart from the rest: a look-up reads 32 bytes a bucket, and then 24 where it has a hit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

SLOTS = 4
MAX_LOAD = 0.7

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

FREE, GRAVE = np.uint64(0), np.uint64(1)
"""First half of no key that is kept."""


class KeyTable:
    """Fixed in size. An entry is four words: the key's halves, and two that mean nothing here."""

    def __init__(self, num_buckets: int) -> None:
        """num_buckets: a power of two."""
        assert num_buckets & (num_buckets - 1) == 0, num_buckets
        self._heads: U64 = np.zeros((num_buckets, SLOTS), np.uint64)
        self._flat_heads = self._heads.reshape(-1)
        self._rest: U64 = np.zeros((num_buckets * SLOTS, 3), np.uint64)
        self._mask = np.uint64(num_buckets - 1)
        self.num_entries = 0
        self.num_graves = 0

    @property
    def num_slots(self) -> int:
        return len(self._rest)

    @property
    def num_bytes(self) -> int:
        return int(self._heads.nbytes + self._rest.nbytes)

    def has_room(self, num_more: int) -> bool:
        """Whether so many more keep look-ups short."""
        return self.num_entries + self.num_graves + num_more <= MAX_LOAD * self.num_slots

    def find(self, keys: U64) -> tuple[I64, U64]:
        """Slot and entry [n, 4] of each key: -1 and zeros where it is not here.

        Two keys that agree in the first half alone are so rare that the later one is not kept.
        """
        slots = self._candidates(np.ascontiguousarray(keys[:, 0]))
        entries = np.empty((len(keys), 4), np.uint64)
        entries[:, 0] = keys[:, 0]
        entries[:, 1:] = self._rest.take(slots, axis=0, mode="wrap")
        is_missing = (slots < 0) | (entries[:, 1] != keys[:, 1])
        slots[is_missing] = -1
        entries[is_missing] = 0
        return slots, entries

    def _candidates(self, heads: U64) -> I64:
        """Slots whose keys begin like these; -1 where there is none."""
        slots = np.full(len(heads), -1, np.int64)
        pending = np.arange(len(heads))
        buckets = (heads & self._mask).view(np.int64)
        while len(pending):
            rows = self._heads.take(buckets, axis=0, mode="wrap")
            at = (rows == heads[:, None]).argmax(axis=1)
            found = buckets * SLOTS + at
            is_here = rows.reshape(-1).take(np.arange(0, rows.size, SLOTS) + at) == heads
            slots[pending[is_here]] = found[is_here]
            away = np.flatnonzero(~is_here)
            on = away[rows.take(away, axis=0).all(axis=1)]
            pending, heads = pending[on], heads[on]
            buckets = (buckets[on] + 1) & int(self._mask)
        return slots

    def overwrite(self, slots: I64, entries: U64) -> None:
        """Other words for entries with the same keys."""
        self._rest[slots] = entries[:, 1:]

    def add(self, entries: U64) -> None:
        """Put entries in whose keys differ and are not here. There is room."""
        assert self.has_room(len(entries))
        self.num_entries += len(entries)
        buckets = (entries[:, 0] & self._mask).view(np.int64)
        while len(entries):
            order = np.argsort(buckets)
            entries, buckets = entries[order], buckets[order]
            rows = self._heads[buckets]
            nth_free = (rows <= GRAVE).cumsum(axis=1)
            wanted = rank_in_run(buckets) + 1
            fits = nth_free[:, -1] >= wanted
            at = (nth_free[fits] == wanted[fits, None]).argmax(axis=1)
            slots = buckets[fits] * SLOTS + at
            self.num_graves -= int((self._flat_heads[slots] == GRAVE).sum())
            self._flat_heads[slots] = entries[fits, 0]
            self._rest[slots] = entries[fits, 1:]
            entries = entries[~fits]
            buckets = (buckets[~fits] + 1) & int(self._mask)

    def remove(self, slots: I64) -> None:
        """Take entries out; their slots differ and are in use."""
        self.num_entries -= len(slots)
        self._rest[slots] = 0
        # A bucket with a slot never filled has passed nothing on: there a grave marks nothing.
        self._flat_heads[slots] = GRAVE
        was_full = self._heads[slots // SLOTS].all(axis=1)
        self._flat_heads[slots[~was_full]] = FREE
        self.num_graves += int(was_full.sum())

    def part(self, start: int, end: int) -> tuple[I64, U64]:
        """Slots and entries of what lies between two slots, as copies."""
        slots = start + np.flatnonzero(self._flat_heads[start:end] > GRAVE)
        entries = np.empty((len(slots), 4), np.uint64)
        entries[:, 0] = self._flat_heads[slots]
        entries[:, 1:] = self._rest[slots]
        return slots, entries


class GrowingTable:
    """A table that grows a little with each write, so that no write takes long.

    While it grows there are two: what is written goes to the new one, what is read may be in
    either. An entry is in one of them only.
    """

    def __init__(self, num_buckets: int = 256) -> None:
        self._num_buckets = num_buckets
        self._table = KeyTable(num_buckets)
        self._old: KeyTable | None = None
        self._num_moved = 0
        """Slots of the old table that have been emptied."""

    def __len__(self) -> int:
        return sum(table.num_entries for table in self._tables())

    @property
    def num_bytes(self) -> int:
        return sum(table.num_bytes for table in self._tables())

    def find(self, keys: U64) -> U64:
        """Entries of keys, [n, 4]; zeros where a key is not here."""
        slots, entries = self._table.find(keys)
        if self._old is not None and (missing := np.flatnonzero(slots < 0)).size:
            entries[missing] = self._old.find(keys[missing])[1]
        return entries

    def put(self, entries: U64) -> U64:
        """Put entries in, over those of the same keys, which are returned: zeros for new ones.

        The keys differ, in their first halves as well.
        """
        self._grow(len(entries))
        slots, before = self._table.find(entries[:, :2])
        is_new = slots < 0
        self._table.overwrite(slots[~is_new], entries[~is_new])
        new = entries[is_new]
        if self._old is not None and len(new):
            old_slots, before[is_new] = self._old.find(new[:, :2])
            self._old.remove(old_slots[old_slots >= 0])
        self._table.add(new)
        return before

    def remove(self, keys: U64) -> None:
        """Take keys out; those that are not here don't matter. The keys differ."""
        for table in self._tables():
            slots, _ = table.find(keys)
            table.remove(slots[slots >= 0])
        if not len(self):  # the memory of a cleared table comes free
            self._table, self._old = KeyTable(self._num_buckets), None

    def settle(self, num_slots: int) -> None:
        """Go on growing without a write: while it grows, it takes up to twice the memory."""
        if self._old is not None:
            self._move(num_slots)

    def parts(self, num_slots: int) -> Iterator[U64]:
        """All entries, as copies of a few slots at a time; there may be writes in between. What is
        here all along comes once, or twice when it moves meanwhile."""
        table = self._tables()[0]
        while True:
            for start in range(0, table.num_slots, num_slots):
                yield table.part(start, start + num_slots)[1]
            if table is self._table:
                return
            # Entries move only from older tables to newer ones.
            table = self._table if table is self._old else self._tables()[0]

    def _tables(self) -> list[KeyTable]:
        return [self._table] if self._old is None else [self._old, self._table]

    def _grow(self, num_more: int) -> None:
        if self._old is not None:
            self._move(max(4096, 8 * num_more))
        if self._table.has_room(num_more):
            return
        if self._old is not None:
            self._move(self._old.num_slots)
        num_slots = self._table.num_slots
        while num_slots * MAX_LOAD < 1.5 * (self._table.num_entries + num_more):
            num_slots *= 2
        self._old, self._num_moved = self._table, 0
        self._table = KeyTable(num_slots // SLOTS)

    def _move(self, num_slots: int) -> None:
        """Some of the old table into the new one; the last of it ends it."""
        old = self._old
        assert old is not None
        end = min(self._num_moved + num_slots, old.num_slots)
        slots, entries = old.part(self._num_moved, end)
        self._table.add(entries)
        old.remove(slots)
        self._num_moved = end
        if end == old.num_slots:
            self._old = None


def rank_in_run(values: I64) -> I64:
    """How many equal values stand right before each one."""
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    lengths = np.diff(np.r_[starts, len(values)])
    ranks: I64 = np.arange(len(values)) - np.repeat(starts, lengths)
    return ranks
