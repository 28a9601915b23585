"""This instance's picture of all blocks: what matches are answered from.

Everything here is computation on memory: no wait, no clock. Records come in as Redis holds them;
an index entry is a record with its owner (model, tenant, store, size) replaced by a number.

Entry words: key, key, used | lifetime << 32, owner | flags << 24 | position << 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rorqual_kvmeta.owners import Owners
from rorqual_kvmeta.records import (
    RECORD,
    REPLAYED,
    STATE_MASK,
    Keys,
    Records,
    State,
    expires_unix_s,
    record_keys,
)
from rorqual_kvmeta.table import GRAVE, GrowingTable

FIRST_LOOK = 64
"""Keys looked up at first; each further look takes four times as many, until one misses."""

_SEEN = 0xF0
"""Flags of an entry that say which resync has met it: 1 to 15, then from 1 again."""
_KEPT_FLAGS = 0x0F
_OWNER_BITS, _LOW = np.uint64(24), np.uint64(32)
_LOW_MASK = np.uint64(0xFFFFFFFF)
_OWNER_MASK = np.uint64((1 << 24) - 1)
_FLAG_MASK = np.uint64(0xFF)

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_MISS = {
    0: "never_stored",
    State.EVICTED: "evicted",
    State.CORRUPT: "corrupt",
    State.EXPIRED: "expired",
}


@dataclass(frozen=True, slots=True)
class IndexMatch:
    """The known prefix of a list of block keys."""

    num_blocks: int
    miss_reason: str
    """Of the first block that is not there; empty when all are."""
    num_exact: int = 0
    """Leading blocks before the first replayed one."""


STORE_AWAY = IndexMatch(0, "unavailable")


class BlockIndex:
    """All records of the fleet, in this process's memory. Lives on one thread."""

    def __init__(self) -> None:
        self._table = GrowingTable()
        self.owners = Owners()
        self._seen = 0x10

    def __len__(self) -> int:
        """Records, of live and of gone blocks."""
        return len(self._table)

    @property
    def num_live(self) -> int:
        return self.owners.num_live

    @property
    def num_bytes(self) -> int:
        return self._table.num_bytes

    def match(
        self, model: int, keys: Keys, now_unix_s: float, *, exact_only: bool = False
    ) -> IndexMatch:
        """Longest prefix of live blocks of this model, and what is wrong with the next block."""
        start, size, num_exact = 0, FIRST_LOOK, len(keys)
        while start < len(keys):
            entries = self._table.find(keys[start : start + size])
            states = self._states(entries, model, now_unix_s)
            is_replayed = (_flags(entries) & REPLAYED) != 0
            if is_replayed.any():
                num_exact = min(num_exact, start + _first(is_replayed))
            end = _first((states != State.LIVE) | (is_replayed & exact_only))
            if end < len(entries):
                reason = _MISS.get(int(states[end]), "replay_boundary")
                return IndexMatch(start + end, reason, min(num_exact, start + end))
            start, size = start + len(entries), size * 4
        return IndexMatch(len(keys), "", num_exact)

    def lookup(self, keys: Keys) -> Records:
        """Records of these blocks; those that nothing is known of are left out."""
        entries = self._table.find(keys)
        return self._records(entries[_flags(entries) != 0])

    def is_live(self, key: Keys, now_unix_s: float) -> bool:
        """Whether this one block is known and alive, whosoever it is."""
        return bool((_states_of(self._table.find(key), now_unix_s) == State.LIVE).all())

    def touch(self, keys: Keys, now_unix_s: float, touch_share: float) -> Records:
        """Count a use now of live blocks; the records of those whose life that makes longer.

        touch_share: a gain of at most this share of the lifetime is not worth writing down.
        """
        entries = self._table.find(keys)
        used, lifetime = entries[:, 2] & _LOW_MASK, entries[:, 2] >> _LOW
        now = np.uint64(int(now_unix_s))
        gains = (now > used) & (now - np.minimum(used, now) > touch_share * lifetime)
        gains &= _states_of(entries, now_unix_s) == State.LIVE
        touched = entries[gains]
        touched[:, 2] = now | (lifetime[gains] << _LOW)
        if len(touched):
            self._put(touched)
        return self._records(touched)

    def merged(self, records: Records, now_unix_s: float) -> Records:
        """Records of blocks stored now, joined with what is known: the longer life stays. A store
        keeps an exact block, or takes one in place of a replayed one; a block that two stores have
        is exact only where both are."""
        merged = records.copy()
        known = self._records(self._table.find(record_keys(records)))
        is_live = (known["flags"] & STATE_MASK) == State.LIVE
        is_live &= expires_unix_s(known) > now_unix_s
        is_live &= known["model"] == records["model"]
        longer = is_live & (expires_unix_s(known) > expires_unix_s(records))
        for name in ("used_unix_s", "lifetime_s"):
            merged[name][longer] = known[name][longer]
        is_other = is_live & (known["store"] != records["store"])
        is_same = is_live & ~is_other
        merged["flags"][is_same] &= known["flags"][is_same]
        merged["flags"][is_other] |= known["flags"][is_other]
        return merged

    def apply(self, records: Records, now_unix_s: float) -> None:
        """Take records over as they are; of two with one key the last counts."""
        records = _last_of_each_key(records)
        if not len(records):
            return
        entries = np.zeros((len(records), 4), np.uint64)
        entries[:, :2] = record_keys(records)
        entries[:, 2] = records["used_unix_s"] | (records["lifetime_s"].astype(np.uint64) << _LOW)
        flags = (records["flags"] & np.uint32(_KEPT_FLAGS)).astype(np.uint64)
        position = records["position"].astype(np.uint64)
        owners = self.owners.numbers_of(records).astype(np.uint64)
        entries[:, 3] = owners | (flags << _OWNER_BITS) | (position << _LOW)
        states = _states_of(entries, now_unix_s)
        entries = entries[states != 0]
        self._put(_with_state(entries, states[states != 0]))

    def forget(self, keys: Keys, state: State, now_unix_s: float) -> Records:
        """Live blocks are gone from now on, for the reason that `state` names; their records."""
        entries = self._table.find(np.unique(keys, axis=0))
        live = entries[(_flags(entries) & STATE_MASK) == State.LIVE]
        gone = _with_state(live, np.full(len(live), state, np.uint32))
        gone[:, 2] = int(now_unix_s)
        if len(gone):
            self._put(gone)
        return self._records(gone)

    def remove(self, keys: Keys) -> None:
        """Nothing is known of these blocks any more. The keys differ."""
        entries = self._table.find(keys)
        self._count(entries, -1)
        self._table.remove(keys)

    # In parts, so that nobody waits long: a caller lets others have their turn between two.

    def parts(self) -> Iterator[U64]:
        """Entries of all records. What is here all along comes at least once."""
        return self._table.parts(_PART)

    def clear(self, part: U64, model: int | None, tenant: int | None) -> int:
        """Remove what is of a model, a tenant or both (None = any); how much that was."""
        chosen = part[np.isin(_owners(part), self.owners.matching(model, tenant))]
        if len(chosen):
            self.remove(chosen[:, :2])
        return len(chosen)

    def sweep(self, part: U64, now_unix_s: float, expired_memory_s: float, kept: U64) -> U64:
        """What has expired counts as such from now on, and what did so expired_memory_s ago is
        removed. Returns the keys of the latter.

        kept: first halves of keys that somebody holds a lease on; they stay.
        """
        self._table.settle(_PART)
        if not len(part):
            return part[:, :2]
        flags_say = _flags(part) & STATE_MASK
        ended = part[(flags_say == State.LIVE) & (_states_of(part, now_unix_s) != flags_say)]
        if len(ended):
            self._put(_with_state(ended, np.full(len(ended), State.EXPIRED, np.uint32)))
        is_old = _expires(part) + expired_memory_s <= now_unix_s
        is_old &= ~np.isin(part[:, 0], kept)
        keys = part[is_old][:, :2]
        if len(keys):
            self.remove(keys)
        return keys

    def live_of(self, part: U64, owners: I64) -> Records:
        """Live records of these owners."""
        is_live = (_flags(part) & STATE_MASK) == State.LIVE
        return self._records(part[is_live & np.isin(_owners(part), owners)])

    def live_records(self, part: U64) -> Records:
        """Live records of anyone."""
        return self._records(part[(_flags(part) & STATE_MASK) == State.LIVE])

    # Resync: what Redis does not know is dropped after all it knows was taken over.

    def begin_resync(self) -> None:
        """From now on, what is applied counts as seen."""
        self._seen = 0x10 + self._seen % 0xF0

    def drop_unseen(self, part: U64) -> int:
        """Remove what is from before `begin_resync`."""
        unseen = part[(_flags(part) & _SEEN) != self._seen]
        if len(unseen):
            self.remove(unseen[:, :2])
        return len(unseen)

    def _states(self, entries: U64, model: int, now_unix_s: float) -> npt.NDArray[np.uint32]:
        """States now; 0 also for a block of another model."""
        states = _states_of(entries, now_unix_s)
        states[self.owners.models(_owners(entries)) != np.uint64(model)] = 0
        return states

    def _put(self, entries: U64) -> None:
        entries[:, 3] &= ~(np.uint64(_SEEN) << _OWNER_BITS)
        entries[:, 3] |= np.uint64(self._seen) << _OWNER_BITS
        self._count(self._table.put(entries), -1)
        self._count(entries, 1)

    def _count(self, entries: U64, change: int) -> None:
        live = (_flags(entries) & STATE_MASK) == State.LIVE
        self.owners.count(_owners(entries[live]), change)

    def _records(self, entries: U64) -> Records:
        records = np.zeros(len(entries), RECORD)
        records["hi"], records["lo"] = entries[:, 0], entries[:, 1]
        records["used_unix_s"] = entries[:, 2] & _LOW_MASK
        records["lifetime_s"] = entries[:, 2] >> _LOW
        records["flags"] = _flags(entries) & _KEPT_FLAGS
        records["position"] = entries[:, 3] >> _LOW
        owners = self.owners.rows(_owners(entries))
        for name in ("model", "tenant", "store", "size_bytes"):
            records[name] = owners[name]
        return records


_PART = 1 << 16
"""Slots."""


def _first(marks: npt.NDArray[np.bool_]) -> int:
    """Where the first mark is; the length where there is none."""
    return int(marks.argmax()) if marks.any() else len(marks)


def _flags(entries: U64) -> npt.NDArray[np.uint32]:
    return ((entries[:, 3] >> _OWNER_BITS) & _FLAG_MASK).astype(np.uint32)


def _owners(entries: U64) -> I64:
    return (entries[:, 3] & _OWNER_MASK).astype(np.int64)


def _expires(entries: U64) -> I64:
    return ((entries[:, 2] & _LOW_MASK) + (entries[:, 2] >> _LOW)).astype(np.int64)


def _states_of(entries: U64, now_unix_s: float) -> npt.NDArray[np.uint32]:
    """What the flags say, and EXPIRED where a live one's time is over."""
    states = _flags(entries) & np.uint32(STATE_MASK)
    states[(states == State.LIVE) & (_expires(entries) <= now_unix_s)] = State.EXPIRED
    return states


def _with_state(entries: U64, states: npt.NDArray[np.uint32]) -> U64:
    changed = entries.copy()
    changed[:, 3] &= ~(np.uint64(STATE_MASK) << _OWNER_BITS)
    changed[:, 3] |= states.astype(np.uint64) << _OWNER_BITS
    return changed


def _last_of_each_key(records: Records) -> Records:
    """Without keys that are none, and of two records with one key the later one."""
    records = records[records["hi"] > GRAVE]
    _, from_end = np.unique(records["hi"][::-1], return_index=True)
    if len(from_end) == len(records):
        return records
    return records[len(records) - 1 - from_end]
