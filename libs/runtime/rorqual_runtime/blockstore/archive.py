"""Blocks of a store in one file, to be moved to another: records one after another, each with its
fingerprint, and at the end their number, which says that the file is whole."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

from rorqual_runtime.blockstore.backend import BlockListing, BlockStoreBackend
from rorqual_runtime.blockstore.record import (
    NOWHERE,
    PACKED_BYTES,
    BadRecord,
    BlockName,
    RecordHeader,
    digest_of,
    verify,
)

_MAGIC = b"RQARCHV1"
_LENGTH = struct.Struct("<I")
_END = struct.Struct("<IQ")
_END_MARK = 0xFFFFFFFF
_MAX_NAME_BYTES = 4096
_MAX_BLOCK_BYTES = 1 << 30


class BadArchive(Exception):
    """The file is no archive, or ends too early, or is damaged: says where."""


@dataclass(frozen=True, slots=True)
class ImportCounts:
    num_kept: int
    num_expired: int
    num_refused: int
    """Blocks that the store had no room for."""


def export_blocks(
    store: BlockStoreBackend, listings: Iterable[BlockListing], file: BinaryIO
) -> tuple[int, int]:
    """Write verified blocks. Returns (written, vanished or damaged ones). Raises: OSError."""
    num_written = num_lost = 0
    file.write(_MAGIC)
    for listing in listings:
        payload = bytearray(listing.num_bytes)
        if not store.get(listing.fingerprint, listing.key, payload, is_use=False):
            num_lost += 1
            continue
        name = BlockName.of(listing.fingerprint, listing.key)
        header = RecordHeader(
            name,
            NOWHERE,
            listing.num_bytes,
            listing.created_unix_s,
            listing.expires_unix_s,
            listing.mark,
            digest_of(payload),
        )
        fingerprint = listing.fingerprint.encode()
        file.write(_LENGTH.pack(len(fingerprint)) + fingerprint + header.pack())
        file.write(payload)
        num_written += 1
    file.write(_END.pack(_END_MARK, num_written))
    return num_written, num_lost


def import_blocks(store: BlockStoreBackend, file: BinaryIO, *, now_unix_s: float) -> ImportCounts:
    """Put every block that has not expired, for the rest of its life.

    Raises: BadArchive; the blocks before the damage are in the store then. OSError.
    """
    if file.read(len(_MAGIC)) != _MAGIC:
        raise BadArchive("not an archive of blocks")
    num_kept = num_expired = num_refused = 0
    while (record := _next_record(file, num_kept + num_expired + num_refused)) is not None:
        fingerprint, header, payload = record
        ttl_s = None
        if header.expires_unix_s is not None:
            ttl_s = header.expires_unix_s - now_unix_s
        if ttl_s is not None and ttl_s <= 0:
            num_expired += 1
        elif store.put(fingerprint, header.name.key, payload, ttl_s=ttl_s, mark=header.mark):
            num_kept += 1
        else:
            num_refused += 1
    return ImportCounts(num_kept, num_expired, num_refused)


def _next_record(file: BinaryIO, num_before: int) -> tuple[str, RecordHeader, bytes] | None:
    where = f"block {num_before + 1}"
    (length,) = _LENGTH.unpack(_exactly(file, _LENGTH.size, where))
    if length == _END_MARK:
        rest = _exactly(file, _END.size - _LENGTH.size, where)
        if int.from_bytes(rest, "little") != num_before:
            raise BadArchive("blocks are missing in the middle")
        return None
    if length > _MAX_NAME_BYTES:
        raise BadArchive(f"damaged at {where}")
    try:
        fingerprint = _exactly(file, length, where).decode()
        raw = _exactly(file, PACKED_BYTES, where)
        header = RecordHeader.parse(raw)
        if header.num_payload_bytes > _MAX_BLOCK_BYTES:
            raise BadArchive(f"damaged at {where}")
        payload = _exactly(file, header.num_payload_bytes, where)
        verify(raw, memoryview(payload), BlockName.of(fingerprint, header.name.key), NOWHERE)
    except (BadRecord, UnicodeDecodeError) as error:
        raise BadArchive(f"damaged at {where}: {error}") from error
    return fingerprint, header, payload


def _exactly(file: BinaryIO, num_bytes: int, where: str) -> bytes:
    data = file.read(num_bytes)
    if len(data) < num_bytes:
        raise BadArchive(f"ends within {where}")
    return data
