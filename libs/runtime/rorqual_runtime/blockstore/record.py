"""One record: a header of one page that says and proves what follows, then the block's bytes."""

from __future__ import annotations

import functools
import re
import struct
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
_PLACE = struct.Struct("<8sIIII16s")
_NAME = slice(_PLACE.size, _PLACE.size + 32)
_LENGTH = slice(_NAME.stop, _NAME.stop + 8)
_DIGEST_BYTES = 16
_DIGEST = slice(_FIELDS.size - _DIGEST_BYTES, _FIELDS.size)
PACKED_BYTES = _FIELDS.size + _DIGEST_BYTES


class BadRecord(Exception):
    """The record is not what its index says, or not one at all."""


_UNNAMED = "unnamed:"
_UNNAMED_FORM = re.compile(_UNNAMED + "[0-9a-f]{32}")


@functools.lru_cache(maxsize=256)
def fingerprint_digest(fingerprint: str) -> bytes:
    """16 bytes for it in records and entries."""
    if _UNNAMED_FORM.fullmatch(fingerprint):
        return bytes.fromhex(fingerprint.removeprefix(_UNNAMED))
    return xxhash.xxh3_128_digest(fingerprint.encode())


def unnamed(digest: bytes) -> str:
    """What to call the model of a digest whose fingerprint is not known; has this digest, too."""
    return _UNNAMED + digest.hex()


def is_named(fingerprint: str) -> bool:
    return _UNNAMED_FORM.fullmatch(fingerprint) is None


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


class RecordHeader(NamedTuple):
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
    def parse(cls, raw: bytes | memoryview) -> Self:
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


def _fields(raw: bytes | memoryview) -> tuple[Any, ...]:
    values = _FIELDS.unpack(_header(raw)[: _FIELDS.size])
    if values[:2] != (_MAGIC, _FORMAT_VERSION):
        raise BadRecord("another format")
    return values


def _header(raw: bytes | memoryview) -> bytes:
    """The header alone, whole. Raises: BadRecord."""
    header = bytes(raw[:PACKED_BYTES])
    if len(header) < PACKED_BYTES:
        raise BadRecord("truncated header")
    if xxhash.xxh3_128_digest(header[: _FIELDS.size]) != header[_FIELDS.size :]:
        raise BadRecord("wrong header checksum")
    return header


def digest_of(payload: Buffer) -> bytes:
    return xxhash.xxh3_128_digest(payload)


def verify(raw: bytes | memoryview, payload: memoryview, name: BlockName, address: Address) -> None:
    """Look at a record that was read whole.

    Raises: BadRecord unless header and payload are what was put, under this name, at this place.
    """
    header = _header(raw)
    store_id, segment, slot, generation = address
    if header[: _PLACE.size] != _PLACE.pack(
        _MAGIC, _FORMAT_VERSION, segment, slot, generation, store_id
    ):
        raise BadRecord("a record of another place")
    if header[_NAME] != name.fingerprint + name.key:
        raise BadRecord("another block")
    if int.from_bytes(header[_LENGTH], "little") != payload.nbytes:
        raise BadRecord("wrong length")
    if header[_DIGEST] != digest_of(payload):
        raise BadRecord("wrong payload checksum")
