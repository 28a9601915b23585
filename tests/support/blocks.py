"""Blocks whose bytes follow from their number, and ways to harm a store's files."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from rorqual_policy import ValueEviction
from rorqual_runtime.blockstore import BlockStore, BlockStoreBackend

SIZE = 10_000
SLOT = 4096 + 12_288
"""A slot for such a block: a page of header, the payload in whole pages."""
FINGERPRINT = "model-a/layout-1"


def key_of(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=16).digest()


def block(number: int, size: int = SIZE) -> bytes:
    """What belongs under the key: known to every process."""
    return random.Random(number).randbytes(size)


def open_store(directory: Path, capacity_bytes: int, **options) -> BlockStore:
    return BlockStore(directory, capacity_bytes, eviction=ValueEviction(), **options)


def put(store: BlockStoreBackend, number: int, **options) -> bool:
    return store.put(FINGERPRINT, key_of(number), block(number), **options)


def got(store: BlockStoreBackend, number: int, fingerprint: str = FINGERPRINT) -> bytes | None:
    into = bytearray(SIZE)
    return bytes(into) if store.get(fingerprint, key_of(number), into) else None


def data_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("slots-*/*.data"))


def index_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("slots-*/*.index"))


def flip_bit(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def swap_records(directory: Path, one: bytes, other: bytes, slot_bytes: int) -> None:
    """The slots of two keys change places."""
    places = [find_record(directory, key) for key in (one, other)]
    raws = [path.read_bytes()[at : at + slot_bytes] for path, at in places]
    for (path, at), raw in zip(places, reversed(raws), strict=True):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(raw)


def record_offset(path: Path, key: bytes) -> int:
    """Where in this data file the record of the key begins. Raises: ValueError."""
    at = path.read_bytes().index(key)
    return at - at % 4096


def find_record(directory: Path, key: bytes) -> tuple[Path, int]:
    """Data file and offset of the key's record. Raises: LookupError."""
    for path in data_files(directory):
        try:
            return path, record_offset(path, key)
        except ValueError:
            continue
    raise LookupError(key.hex())
