"""Block records as Redis holds them, and what a list of them says about a prefix."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from rorqual_policy import block_lifetime_s

_HEAD = struct.Struct("<Bd?I")
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block that lies in a store."""

    key: bytes
    size_bytes: int
    is_chat: bool
    """Chat traffic lives longer than agent traffic."""
    store: str


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """What is known of a block under its key."""

    expires_unix_s: float
    is_chat: bool
    size_bytes: int
    store: str

    def encode(self) -> bytes:
        head = _HEAD.pack(_FORMAT, self.expires_unix_s, self.is_chat, self.size_bytes)
        return head + self.store.encode()

    @classmethod
    def decode(cls, value: bytes) -> "BlockRecord | None":
        """None for anything that is no record of this format: it counts as unknown."""
        if len(value) < _HEAD.size or value[0] != _FORMAT:
            return None
        _, expires_unix_s, is_chat, size_bytes = _HEAD.unpack_from(value)
        return cls(
            expires_unix_s, is_chat, size_bytes, value[_HEAD.size :].decode("utf-8", "replace")
        )


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long blocks are known after their last use."""

    chat_s: float
    agent_s: float
    expired_memory_s: float
    touch_share: float

    def expires_unix_s(self, is_chat: bool, now_unix_s: float) -> float:
        return now_unix_s + block_lifetime_s(
            is_chat=is_chat, chat_s=self.chat_s, agent_s=self.agent_s
        )

    def redis_ttl_ms(self, record: BlockRecord, now_unix_s: float) -> int:
        """Until Redis drops the record: after it expired, for `expired_memory_s` more."""
        ttl_s = record.expires_unix_s - now_unix_s + self.expired_memory_s
        return max(1, math.ceil(ttl_s * 1000))

    def touched(self, record: BlockRecord, now_unix_s: float) -> BlockRecord | None:
        """The record after a use now; None when that adds too little to write it down."""
        expires_unix_s = self.expires_unix_s(record.is_chat, now_unix_s)
        gained_s = expires_unix_s - record.expires_unix_s
        if gained_s <= self.touch_share * (expires_unix_s - now_unix_s):
            return None
        return BlockRecord(expires_unix_s, record.is_chat, record.size_bytes, record.store)


@dataclass(frozen=True, slots=True)
class BlockMatch:
    """The stored prefix of a list of block keys."""

    num_blocks: int
    miss_reason: str
    """Of the first block that is not there; empty when all are."""


NO_BLOCKS = BlockMatch(0, "")
STORE_AWAY = BlockMatch(0, "unavailable")


def longest_prefix(records: Sequence[BlockRecord | None], now_unix_s: float) -> BlockMatch:
    """How many leading blocks are known and alive, and what is wrong with the next one."""
    for index, record in enumerate(records):
        if record is None:
            return BlockMatch(index, "never_stored")
        if record.expires_unix_s <= now_unix_s:
            return BlockMatch(index, "expired")
    return BlockMatch(len(records), "")


def redis_keys(fingerprint: str, keys: Sequence[bytes]) -> list[bytes]:
    """Names in Redis: fingerprint and key each at a fixed width, so no two pairs share a name."""
    tag = blake2b(fingerprint.encode(), digest_size=8).hexdigest().encode()
    prefix = b"rorqual:v1:block:" + tag + b":"
    return [prefix + key for key in keys]
