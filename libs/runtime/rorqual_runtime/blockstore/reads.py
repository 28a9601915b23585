"""Blocks out of the store: found, read side by side, believed once their records are proven."""

from __future__ import annotations

import contextlib
import errno
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rorqual_runtime.blockstore.record import BadRecord, BlockName, verify
from rorqual_runtime.blockstore.segment_set import Found, change_use
from rorqual_runtime.blockstore.size_classes import SizeClass, SizeClasses
from rorqual_runtime.blockstore.slot_io import Move

_ROUNDS = 2
"""Once more for slots that were used anew meanwhile."""


class Wanted(NamedTuple):
    name: BlockName
    into: memoryview


def read_blocks(
    classes: SizeClasses, wanted: Sequence[Wanted], now_unix_s: float, *, notes_use: bool = True
) -> list[bool]:
    """Fill each `into`; those of False, the misses, hold anything. Storage failures are misses."""
    hits = [False] * len(wanted)
    by_size = defaultdict(list)
    for index, (_, into) in enumerate(wanted):
        by_size[into.nbytes].append(index)
    for num_bytes, indices in by_size.items():
        try:
            size_class = classes.find(num_bytes)
            if size_class is not None:
                batch = _Batch(size_class, wanted, hits, now_unix_s, notes_use)
                for _ in range(_ROUNDS):
                    indices = batch.read(indices)
        except OSError:
            continue
    return hits


class _Batch:
    """Reads of blocks of one size."""

    def __init__(
        self,
        size_class: SizeClass,
        wanted: Sequence[Wanted],
        hits: list[bool],
        now_unix_s: float,
        notes_use: bool,
    ) -> None:
        self._segments, self._allocator = size_class
        self._wanted = wanted
        self._hits = hits
        self._now_unix_s = now_unix_s
        self._notes_use = notes_use
        self._found: dict[int, Found] = {}

    def read(self, indices: Sequence[int]) -> list[int]:
        """Returns those that are worth another look. Raises: OSError."""
        again = []
        reads = self._segments.io.read_each(self._moves(indices), len(indices))
        with contextlib.closing(reads):
            for move in reads:
                found = self._found[move.tag]
                if self._is_right(move, found):
                    self._hits[move.tag] = True
                    self._note_use(found)
                elif _is_damage(move.error) and not self._allocator.withdraw(found, "corrupt"):
                    again.append(move.tag)
        return again

    def _moves(self, indices: Sequence[int]) -> Iterator[Move]:
        for index in indices:
            name, into = self._wanted[index]
            found = self._segments.locate(name)
            if found is None or found.entry.num_bytes != into.nbytes:
                continue
            if found.entry.is_due(self._now_unix_s):
                self._allocator.withdraw(found, "expired")
                continue
            self._found[index] = found
            yield found.segment.move(index, found.slot, into)

    def _is_right(self, move: Move, found: Found) -> bool:
        """Whether the block has come, proven."""
        if move.error is not None:
            return False
        address = found.segment.address(found.slot, found.entry.generation)
        try:
            verify(move.header, move.payload, self._wanted[move.tag].name, address)
        except BadRecord as error:
            move.error = error
        return move.error is None

    def _note_use(self, found: Found) -> None:
        if self._notes_use and found.entry.used(int(self._now_unix_s)) is not None:
            change_use(found, lambda entry: entry.used(int(self._now_unix_s)))


def _is_damage(error: OSError | BadRecord | None) -> bool:
    """Not so a storage that does not answer: the block may be fine."""
    return isinstance(error, BadRecord) or (error is not None and error.errno == errno.EIO)
