"""Where a key's record may be: a hash table in a file, shared by all processes of a store.

It is a hint. Every answer is checked against the segment's entry, so an update that is lost or
torn costs at most a miss, and processes take no lock. It can be made anew from the segments' index
files.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import xxhash

from rorqual_runtime.blockstore.descriptors import open_descriptor
from rorqual_runtime.blockstore.record import PAGE_BYTES, BlockName

_MAGIC = b"RQKEYMP2"
_HEADER = struct.Struct("<8sQ16s")  # magic, buckets, store
_PLACE = struct.Struct("<8sII")  # tag, segment, slot
_BUCKET_PLACES = 32
_BUCKET_BYTES = _BUCKET_PLACES * _PLACE.size
_MEAN_PLACES = 12
_NO_TAG = bytes(8)


class Place(NamedTuple):
    segment: int
    slot: int


class BadMap(Exception):
    """The file is no map of this store."""


def buckets_for(num_blocks: int) -> int:
    """Buckets that hold num_blocks with next to none full."""
    return max(1, -(-num_blocks // _MEAN_PLACES))


def create_map(path: Path, num_buckets: int, store_id: bytes) -> None:
    """An empty map under this name, in place of one that may be there. Raises: OSError, leaving
    nothing new."""
    fresh = path.with_suffix(".new")
    fields = _HEADER.pack(_MAGIC, num_buckets, store_id)
    try:
        fresh.write_bytes(fields + xxhash.xxh3_64_digest(fields))
        os.truncate(fresh, PAGE_BYTES + num_buckets * _BUCKET_BYTES)
        fresh.rename(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


class KeyMap:
    """An open map. Safe for threads and processes; every method may raise OSError."""

    def __init__(self, path: Path, store_id: bytes) -> None:
        """Raises: BadMap, OSError."""
        self._file = open_descriptor(path, os.O_RDWR)
        raw = os.pread(self._file.fd, PAGE_BYTES, 0)
        fields = raw[: _HEADER.size]
        if raw[_HEADER.size : _HEADER.size + 8] != xxhash.xxh3_64_digest(fields):
            raise BadMap
        magic, self.num_buckets, owner = _HEADER.unpack(fields)
        if magic != _MAGIC or owner != store_id or not self.num_buckets:
            raise BadMap
        self._fd = self._file.fd
        self._lock = threading.Lock()

    def places(self, name: BlockName) -> list[Place]:
        """Where records of this name may be, mostly none or one."""
        tag, offset = self._home(name)
        bucket = os.pread(self._fd, _BUCKET_BYTES, offset)
        return [place for _, place in _matches(bucket, tag)]

    def add(self, name: BlockName, place: Place, is_stale: Callable[[bytes, Place], bool]) -> None:
        """is_stale(tag, place) says whether no block of this tag is there any more: asked when the
        bucket is full. If none is stale, the place of some other block is forgotten."""
        tag, offset = self._home(name)
        with self._lock:
            bucket = os.pread(self._fd, _BUCKET_BYTES, offset).ljust(_BUCKET_BYTES, b"\0")
            start = place.slot ^ os.getpid()
            index = _free_index(bucket, start)
            if index is None:
                index = _stale_index(bucket, is_stale)
            if index is None:
                index = start % _BUCKET_PLACES
            os.pwrite(self._fd, _PLACE.pack(tag, *place), offset + index * _PLACE.size)

    def remove(self, name: BlockName, place: Place) -> None:
        tag, offset = self._home(name)
        with self._lock:
            bucket = os.pread(self._fd, _BUCKET_BYTES, offset)
            for index, found in _matches(bucket, tag):
                if found == place:
                    os.pwrite(self._fd, bytes(_PLACE.size), offset + index * _PLACE.size)

    def is_removed(self) -> bool:
        return os.fstat(self._file.fd).st_nlink == 0

    def _home(self, name: BlockName) -> tuple[bytes, int]:
        """The name's tag and the offset of its bucket."""
        digest = xxhash.xxh3_128_digest(name.fingerprint + name.key)
        bucket = int.from_bytes(digest[8:], "little") % self.num_buckets
        return digest[:8], PAGE_BYTES + bucket * _BUCKET_BYTES


def tag_of(name: BlockName) -> bytes:
    """8 bytes that stand for the name within its bucket. All zero (one name in 2^64) is found by
    nobody: unused places look like that."""
    return xxhash.xxh3_128_digest(name.fingerprint + name.key)[:8]


def _matches(bucket: bytes, tag: bytes) -> list[tuple[int, Place]]:
    """(index, place) of each that has this tag."""
    found = []
    at = bucket.find(tag)
    while at >= 0:
        if at % _PLACE.size == 0 and at + _PLACE.size <= len(bucket):
            _, segment, slot = _PLACE.unpack_from(bucket, at)
            found.append((at // _PLACE.size, Place(segment, slot)))
        at = bucket.find(tag, at + 1)
    return found


def _free_index(bucket: bytes, start: int) -> int | None:
    """An unused index of the bucket; each process and slot looks from another one on."""
    for step in range(start, start + _BUCKET_PLACES):
        at = step % _BUCKET_PLACES * _PLACE.size
        if bucket[at : at + 8] == _NO_TAG:
            return at // _PLACE.size
    return None


def _stale_index(bucket: bytes, is_stale: Callable[[bytes, Place], bool]) -> int | None:
    for index, (tag, segment, slot) in enumerate(_PLACE.iter_unpack(bucket)):
        if is_stale(tag, Place(segment, slot)):
            return index
    return None
