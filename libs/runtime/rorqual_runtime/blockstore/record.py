"""One record: a 128-byte header that says and proves what follows, then the block's bytes."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import xxhash

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER_BYTES = 128
MAX_KEY_BYTES = 32
NEVER_UNIX_S = 7_258_118_400.0
"""Expiry of a block without one: the year 2200."""
_MAGIC = b"RQBLOCK1"
_FORMAT_VERSION = 1
# magic, version, key length, fingerprint hash, key, payload bytes, expires, created, payload hash
_FIELDS = struct.Struct("<8sII16s32sQdd16s")
_DIGEST_BYTES = 16


class BadRecord(Exception):
    """The record is not what its name says: to be deleted."""


@functools.lru_cache(maxsize=256)
def fingerprint_digest(fingerprint: str) -> bytes:
    return xxhash.xxh3_128_digest(fingerprint.encode())


@dataclass(frozen=True)
class BlockName:
    """Identity of a block and the name of its file."""

    fingerprint: bytes
    """16-byte digest of the caller's fingerprint."""
    key: bytes

    @classmethod
    def of(cls, fingerprint: str, key: bytes) -> Self:
        if not 1 <= len(key) <= MAX_KEY_BYTES:
            raise ValueError(f"need a key of 1 to {MAX_KEY_BYTES} bytes; got {len(key)}")
        return cls(fingerprint_digest(fingerprint), bytes(key))

    @classmethod
    def of_file(cls, file_name: str) -> Self:
        """The inverse of `file_name`. Raises: BadRecord when it is no record's name."""
        try:
            fingerprint, key = (bytes.fromhex(part) for part in file_name.split("-"))
        except ValueError as error:
            raise BadRecord("no record's file name") from error
        return cls(fingerprint, key)

    @property
    def shard(self) -> int:
        """0 to 255, evenly spread."""
        return xxhash.xxh3_64_intdigest(self.key) & 0xFF

    @property
    def file_name(self) -> str:
        return f"{self.fingerprint.hex()}-{self.key.hex()}"


@dataclass(frozen=True)
class RecordHeader:
    """The parsed and verified header of a record."""

    num_payload_bytes: int
    expires_unix_s: float
    payload_digest: bytes

    def verify_payload(self, payload: Buffer) -> None:
        """Raises: BadRecord when the payload is not the one that was put."""
        if xxhash.xxh3_128_digest(payload) != self.payload_digest:
            raise BadRecord("wrong payload checksum")


def pack_header(
    name: BlockName, payload: memoryview, *, now_unix_s: float, expires_unix_s: float
) -> bytes:
    """The header of a record; hashes the payload."""
    fields = _FIELDS.pack(
        _MAGIC,
        _FORMAT_VERSION,
        len(name.key),
        name.fingerprint,
        name.key,
        payload.nbytes,
        expires_unix_s,
        now_unix_s,
        xxhash.xxh3_128_digest(payload),
    )
    return (fields + xxhash.xxh3_128_digest(fields)).ljust(HEADER_BYTES, b"\0")


def parse_header(raw: Buffer, name: BlockName) -> RecordHeader:
    """The header, if it belongs to this block.

    Raises: BadRecord.
    """
    view = memoryview(raw)
    if view.nbytes < HEADER_BYTES:
        raise BadRecord("truncated header")
    fields = view[: _FIELDS.size]
    if view[_FIELDS.size : _FIELDS.size + _DIGEST_BYTES] != xxhash.xxh3_128_digest(fields):
        raise BadRecord("wrong header checksum")
    magic, version, key_bytes, fingerprint, key, size, expires, _, digest = _FIELDS.unpack(fields)
    if magic != _MAGIC or version != _FORMAT_VERSION:
        raise BadRecord("another format")
    if fingerprint != name.fingerprint or key[:key_bytes] != name.key:
        raise BadRecord("another block")
    return RecordHeader(size, expires, digest)
