"""One record: a header of one page that says and proves what follows, then the block's bytes."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import xxhash

from rorqual_runtime.blockstore.backend import KEY_BYTES, BlockMark, Lifetime, Provenance

if TYPE_CHECKING:
    from typing_extensions import Buffer

PAGE_BYTES = 4096
"""Alignment of everything in a slot; the header takes one such page."""
_MAGIC = b"RQBLOCK2"
_FORMAT_VERSION = 2
# magic, version, segment, slot, generation, store, fingerprint, key, payload bytes, created,
# expires (0: never), provenance, lifetime, depth, payload digest
_FIELDS = struct.Struct("<8sIIII16s16s16sQddBBxxI16s")
_DIGEST_BYTES = 16
PACKED_BYTES = _FIELDS.size + _DIGEST_BYTES


class BadRecord(Exception):
    """The record is not what its index says, or not one at all."""


@functools.lru_cache(maxsize=256)
def fingerprint_digest(fingerprint: str) -> bytes:
    return xxhash.xxh3_128_digest(fingerprint.encode())


class BlockName(NamedTuple):
    """Identity of a block."""

    fingerprint: bytes
    """16-byte digest of the caller's fingerprint."""
    key: bytes

    @classmethod
    def of(cls, fingerprint: str, key: bytes) -> Self:
        if len(key) != KEY_BYTES:
            raise ValueError(f"need a key of {KEY_BYTES} bytes; got {len(key)}")
        return cls(fingerprint_digest(fingerprint), bytes(key))


class Address(NamedTuple):
    """Where a record belongs. A slot gets a new generation whenever it is used anew."""

    store_id: bytes
    segment: int
    slot: int
    generation: int


NOWHERE = Address(bytes(16), 0, 0, 0)
"""Of records outside segment files."""


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """The parsed and verified header of a record."""

    name: BlockName
    address: Address
    num_payload_bytes: int
    created_unix_s: float
    expires_unix_s: float | None
    mark: BlockMark
    payload_digest: bytes

    def pack(self) -> bytes:
        """PACKED_BYTES that `parse` reads."""
        fields = _FIELDS.pack(
            _MAGIC,
            _FORMAT_VERSION,
            self.address.segment,
            self.address.slot,
            self.address.generation,
            self.address.store_id,
            self.name.fingerprint,
            self.name.key,
            self.num_payload_bytes,
            self.created_unix_s,
            self.expires_unix_s or 0.0,
            self.mark.provenance,
            self.mark.lifetime,
            self.mark.depth,
            self.payload_digest,
        )
        return fields + xxhash.xxh3_128_digest(fields)

    @classmethod
    def parse(cls, raw: Buffer) -> Self:
        """Raises: BadRecord when these bytes are no whole header of this format."""
        (_, _, segment, slot, generation, store_id, fingerprint, key, size, created, expires,
         provenance, lifetime, depth, digest) = _fields(raw)  # fmt: skip
        try:
            mark = BlockMark(Provenance(provenance), Lifetime(lifetime), depth)
        except ValueError as error:
            raise BadRecord("another format") from error
        address = Address(store_id, segment, slot, generation)
        name = BlockName(fingerprint, key)
        return cls(name, address, size, created, expires or None, mark, digest)


def _fields(raw: Buffer) -> tuple[Any, ...]:
    view = memoryview(raw)
    if view.nbytes < PACKED_BYTES:
        raise BadRecord("truncated header")
    fields = view[: _FIELDS.size]
    if view[_FIELDS.size : PACKED_BYTES] != xxhash.xxh3_128_digest(fields):
        raise BadRecord("wrong header checksum")
    values = _FIELDS.unpack(fields)
    if values[:2] != (_MAGIC, _FORMAT_VERSION):
        raise BadRecord("another format")
    return values


def digest_of(payload: Buffer) -> bytes:
    return xxhash.xxh3_128_digest(payload)


def verify(raw: Buffer, payload: memoryview, name: BlockName, address: Address) -> None:
    """Look at a record that was read whole.

    Raises: BadRecord unless header and payload are what was put, under this name, at this place.
    """
    (_, _, segment, slot, generation, store_id, fingerprint, key, size, _, _,
     _, _, _, digest) = _fields(raw)  # fmt: skip
    if (store_id, segment, slot, generation) != address:
        raise BadRecord("a record of another place")
    if (fingerprint, key) != name:
        raise BadRecord("another block")
    if size != payload.nbytes:
        raise BadRecord("wrong length")
    if digest_of(payload) != digest:
        raise BadRecord("wrong payload checksum")
