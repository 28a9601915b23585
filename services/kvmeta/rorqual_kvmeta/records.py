"""Block records: 56 bytes each, the same in Redis, on the bus and in arrays.

A record is the 16-byte key of a block and 40 bytes about it. Redis holds the two as field and value
of a hash; events carry them whole, one behind the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
from rorqual_policy import KEY_BYTES, block_lifetime_s
from rorqual_policy.provenance import Provenance

RECORD = np.dtype(
    [
        ("hi", "<u8"),
        ("lo", "<u8"),
        ("used_unix_s", "<u4"),
        ("lifetime_s", "<u4"),
        ("position", "<u4"),
        ("flags", "<u4"),
        ("size_bytes", "<u4"),
        ("store", "<u4"),
        ("model", "<u8"),
        ("tenant", "<u8"),
    ]
)
VALUE_BYTES = RECORD.itemsize - KEY_BYTES

Records = npt.NDArray[Any]
"""Of dtype RECORD."""
Keys = npt.NDArray[np.uint64]
"""[n, 2]: the two halves of 16-byte keys, little endian."""

STATE_MASK = 0b111
REPLAYED = 0b1000


class State(IntEnum):
    """What is known of a block; 0 is no record."""

    LIVE = 1
    EVICTED = 2
    """Dropped for room, or not found by a reader."""
    CORRUPT = 3
    """Found damaged by a reader."""
    EXPIRED = 4
    """Unused for its lifetime; seen when it is looked at, so Redis rarely says so."""


_STATE_AFTER = {"corrupt": State.CORRUPT, "expired": State.EXPIRED}


def state_after(reason: str) -> State:
    """What a block is once it was forgotten for this reason."""
    return _STATE_AFTER.get(reason, State.EVICTED)


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block that lies in a store."""

    key: bytes
    size_bytes: int
    is_chat: bool
    """Chat traffic lives longer than agent traffic."""
    store: str
    tenant: str = ""
    provenance: Provenance = Provenance.EXACT
    position: int = 0
    """Blocks before it in its chain."""
    lifetime_s: float = 0.0
    """Its own; 0 = that of its class."""
    content_key: bytes = b""
    """Of the first block of a chain: its key in no namespace."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long blocks are known after their last use."""

    chat_s: float
    agent_s: float

    def of(self, block: StoredBlock) -> int:
        """Whole seconds, never less than was asked for."""
        by_class_s = block_lifetime_s(
            is_chat=block.is_chat, chat_s=self.chat_s, agent_s=self.agent_s
        )
        return min(math.ceil(block.lifetime_s or by_class_s), 2**31)


def tag(text: str, num_bytes: int = 8) -> int:
    """A fixed-width stand-in for a name of any length."""
    return int.from_bytes(blake2b(text.encode(), digest_size=num_bytes).digest(), "little")


def keys_of(keys: Sequence[bytes]) -> Keys:
    return packed_keys(b"".join(keys))


def packed_keys(packed: bytes) -> Keys:
    """Keys that lie one behind the other."""
    return np.frombuffer(packed, "<u8").reshape(-1, 2)


def records_of(
    fingerprint: str, blocks: Sequence[StoredBlock], lifetimes: Lifetimes, now_unix_s: float
) -> Records:
    """Records of blocks that are used now."""
    records = np.zeros(len(blocks), RECORD)
    keys = keys_of([block.key for block in blocks])
    records["hi"], records["lo"] = keys[:, 0], keys[:, 1]
    records["used_unix_s"] = int(now_unix_s)
    records["lifetime_s"] = [lifetimes.of(block) for block in blocks]
    records["position"] = [block.position for block in blocks]
    records["flags"] = [
        State.LIVE | (REPLAYED if block.provenance is Provenance.REPLAYED else 0)
        for block in blocks
    ]
    records["size_bytes"] = [block.size_bytes for block in blocks]
    tags = {name: tag(name) for name in {block.tenant for block in blocks}}
    stores = {name: tag(name, 4) for name in {block.store for block in blocks}}
    records["tenant"] = [tags[block.tenant] for block in blocks]
    records["store"] = [stores[block.store] for block in blocks]
    records["model"] = tag(fingerprint)
    return records


def record_keys(records: Records) -> Keys:
    """The keys of records, as a copy."""
    return np.stack([records["hi"], records["lo"]], axis=1)


def expires_unix_s(records: Records) -> npt.NDArray[np.int64]:
    used: npt.NDArray[np.int64] = records["used_unix_s"].astype(np.int64)
    lifetime: npt.NDArray[np.int64] = records["lifetime_s"].astype(np.int64)
    return used + lifetime


def states(records: Records) -> npt.NDArray[np.uint32]:
    found: npt.NDArray[np.uint32] = records["flags"] & np.uint32(STATE_MASK)
    return found


def from_hashes(hashes: Iterable[Mapping[bytes, bytes]]) -> Records:
    """Records of whole hashes as Redis gives them; what is no record is left out."""
    parts = [
        part
        for fields in hashes
        for item in fields.items()
        if len(item[0]) == KEY_BYTES and len(item[1]) == VALUE_BYTES
        for part in item
    ]
    return np.frombuffer(b"".join(parts), RECORD)


def from_values(keys: Sequence[bytes], values: Sequence[bytes | None]) -> Records:
    """Records of single fields; missing ones and what is no record are left out."""
    parts = [
        key + value
        for key, value in zip(keys, values, strict=True)
        if value is not None and len(value) == VALUE_BYTES
    ]
    return np.frombuffer(b"".join(parts), RECORD)


def from_events(packed: bytes) -> Records:
    """Records of a bus message; a torn one is cut off."""
    return np.frombuffer(packed[: len(packed) // RECORD.itemsize * RECORD.itemsize], RECORD)
