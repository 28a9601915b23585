"""The index of a segment: one 64-byte entry a slot, written after the slot's record.

All but the last 8 bytes is covered by a checksum that binds the entry to its place; those are
hints for eviction that readers update.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import xxhash

from rorqual_runtime.blockstore.backend import BlockMark, Lifetime, Provenance
from rorqual_runtime.blockstore.record import BlockName

ENTRY_BYTES = 64
_FIELDS = struct.Struct("<IBBBx16s16sIII")
"""generation, state, provenance, lifetime, fingerprint, key, payload bytes, expires, created"""
_CHECK = struct.Struct("<I")
_PLACE = struct.Struct("<II")
_USE = struct.Struct("<IHH")
"""last use (of a held block: until when), uses, depth"""
_WHOLE = struct.Struct("<IBBBx16s16sIIIIIHH")
USE_OFFSET = _FIELDS.size + _CHECK.size
_MAX_U16 = 0xFFFF
_TOUCH_INTERVAL_S = 60
_PROVENANCES = {int(one): one for one in Provenance}
_LIFETIMES = {int(one): one for one in Lifetime}

ENTRY_DTYPE: np.dtype[Any] = np.dtype(
    {
        "names": [
            "generation",
            "state",
            "num_bytes",
            "expires",
            "created",
            "used",
            "uses",
            "depth",
        ],
        "formats": ["<u4", "u1", "<u4", "<u4", "<u4", "<u4", "<u2", "<u2"],
        "offsets": [0, 4, 40, 44, 48, 56, 60, 62],
        "itemsize": ENTRY_BYTES,
    }
)
"""What scans look at, whole seconds of Unix time."""


class SlotState(IntEnum):
    FREE = 0
    VALID = 1


_VALID = int(SlotState.VALID)


class Entry(NamedTuple):
    """A valid entry: what the slot's record is. Times are whole seconds; expires 0 is never."""

    generation: int
    name: BlockName
    num_bytes: int
    expires_s: int
    created_s: int
    used_s: int
    num_uses: int
    mark: BlockMark

    def is_due(self, now_unix_s: float) -> bool:
        """Expired, or written by a clock that was more than a day ahead of today's."""
        if self.created_s > now_unix_s + FUTURE_S:
            return True
        return self.expires_s != 0 and self.expires_s <= now_unix_s

    def used(self, now_s: int) -> Entry | None:
        """With this use noted; None if there is no need to."""
        if 0 <= now_s - self.used_s <= _TOUCH_INTERVAL_S or self._is_held(now_s):
            return None
        return self._replace(used_s=now_s, num_uses=self.num_uses + 1)

    def held(self, now_s: int, until_s: int) -> Entry | None:
        """Held at least until then, which is a use; None if it is."""
        until_s = min(until_s, now_s + MAX_HOLD_S)
        is_held = self._is_held(now_s)
        if until_s <= now_s or (is_held and self.used_s >= until_s):
            return None
        return self._replace(used_s=until_s, num_uses=self.num_uses + (not is_held))

    def _is_held(self, now_s: int) -> bool:
        return now_s < self.used_s <= now_s + MAX_HOLD_S

    def pack(self, segment: int, slot: int) -> bytes:
        fields = _FIELDS.pack(
            self.generation,
            _VALID,
            self.mark.provenance,
            self.mark.lifetime,
            self.name.fingerprint,
            self.name.key,
            self.num_bytes,
            self.expires_s,
            self.created_s,
        )
        return fields + _CHECK.pack(_checksum(fields, segment, slot)) + self.pack_use()

    def pack_use(self) -> bytes:
        """The last 8 bytes alone."""
        uses, depth = min(self.num_uses, _MAX_U16), min(self.mark.depth, _MAX_U16)
        return _USE.pack(self.used_s, uses, depth)


MAX_HOLD_S = 600
"""A last use further ahead is that of a wrong clock."""
FUTURE_S = 86_400.0
"""A block this far from the future is due: the clock that would let it expire was wrong."""


def parse_entry(raw: bytes, segment: int, slot: int) -> Entry | None:
    """The entry of a slot in use; None for a free slot and for anything that is no entry."""
    if len(raw) < ENTRY_BYTES or raw[4] != _VALID:
        return None
    (generation, _, provenance, lifetime, fingerprint, key, size, expires, created,
     check, used, uses, depth) = _WHOLE.unpack(raw)  # fmt: skip
    if check != _checksum(raw[: _FIELDS.size], segment, slot):
        return None
    if provenance not in _PROVENANCES or lifetime not in _LIFETIMES:  # of a later version
        return None
    mark = BlockMark(_PROVENANCES[provenance], _LIFETIMES[lifetime], depth)
    name = BlockName(fingerprint, key)
    return Entry(generation, name, size, expires, created, used, uses, mark)


def free_entry(generation: int) -> bytes:
    """The entry of a free slot that remembers its last generation."""
    return generation.to_bytes(4, "little").ljust(ENTRY_BYTES, b"\0")


def _checksum(fields: bytes, segment: int, slot: int) -> int:
    return xxhash.xxh32_intdigest(fields + _PLACE.pack(segment, slot))
