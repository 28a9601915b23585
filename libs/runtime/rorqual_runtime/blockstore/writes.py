"""Blocks into the store: each takes a slot, is written, and only then becomes visible."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from rorqual_runtime.blockstore.allocator import OwnSlot
from rorqual_runtime.blockstore.backend import BlockMark, Provenance
from rorqual_runtime.blockstore.entries import Entry
from rorqual_runtime.blockstore.record import BlockName, RecordHeader, digest_of
from rorqual_runtime.blockstore.segment_set import Found
from rorqual_runtime.blockstore.size_classes import SizeClass, SizeClasses
from rorqual_runtime.blockstore.slot_io import Move
from rorqual_runtime.logs import get_logger

Outcome = Literal["puts", "duplicates", "put_failures"]

log = get_logger(__name__)


class Offered(NamedTuple):
    """A block to be kept, for at most ttl_s if given."""

    name: BlockName
    payload: memoryview
    ttl_s: float | None
    mark: BlockMark


def write_blocks(
    classes: SizeClasses, offered: Sequence[Offered], now_unix_s: float
) -> list[Outcome]:
    """What became of each. Storage failures are "put_failures"."""
    outcomes: list[Outcome] = ["put_failures"] * len(offered)
    by_size = defaultdict(list)
    first: dict[BlockName, int] = {}
    for index, block in enumerate(offered):
        if first.setdefault(block.name, index) == index:
            by_size[block.payload.nbytes].append(index)
    for num_bytes, indices in by_size.items():
        try:
            batch = _Batch(classes.make(num_bytes), offered, outcomes, now_unix_s)
            batch.write_all(indices)
        except FileNotFoundError:  # somebody has deleted the directory
            classes.begin_again()
        except OSError as error:
            log.debug("blocks not stored", extra={"error": str(error)})
    for index, block in enumerate(offered):
        if first[block.name] != index and outcomes[first[block.name]] != "put_failures":
            outcomes[index] = "duplicates"
    return outcomes


class _Written(NamedTuple):
    """A write under way."""

    own: OwnSlot
    entry: Entry
    earlier: Found | None
    """The block whose place it takes."""


class _Batch:
    """Writes of blocks of one size."""

    def __init__(
        self,
        size_class: SizeClass,
        offered: Sequence[Offered],
        outcomes: list[Outcome],
        now_unix_s: float,
    ) -> None:
        self._segments, self._allocator = size_class
        self._offered = offered
        self._outcomes = outcomes
        self._now_unix_s = now_unix_s
        self._under_way: dict[int, _Written] = {}
        self._left: Sequence[int] = []

    def write_all(self, indices: Sequence[int]) -> None:
        """As long as those that were written make room for the rest. Raises: OSError."""
        num_before = len(indices) + 1
        while 0 < len(indices) < num_before:
            num_before, indices = len(indices), self._write(indices)

    def _write(self, indices: Sequence[int]) -> Sequence[int]:
        """Returns those that are left: there was no room meanwhile. Raises: OSError."""
        self._left = []
        try:
            writes = self._segments.io.write_each(self._moves(indices), len(indices))
            with contextlib.closing(writes):
                for move in writes:
                    self._end(move)
        finally:
            for written in self._under_way.values():
                self._allocator.give_back(written.own)
            self._under_way.clear()
        return self._left

    def _moves(self, indices: Sequence[int]) -> Iterator[Move]:
        for number, index in enumerate(indices):
            block = self._offered[index]
            earlier = self._segments.locate(block.name)
            if earlier is not None and self._keeps(earlier, block):
                self._outcomes[index] = "duplicates"
                continue
            own = self._allocator.take()
            if own is None:
                self._left = indices[number:]
                return
            header, entry = self._described(own, block)
            self._under_way[index] = _Written(own, entry, earlier)
            yield own.segment.move(index, own.slot, block.payload, header)

    def _described(self, own: OwnSlot, block: Offered) -> tuple[bytes, Entry]:
        name, payload, ttl_s, mark = block
        expires_s = _expiry_s(self._now_unix_s, ttl_s)
        header = RecordHeader(
            name,
            own.segment.address(own.slot, own.generation),
            payload.nbytes,
            self._now_unix_s,
            float(expires_s) or None,
            mark,
            digest_of(payload),
        )
        now_s = int(self._now_unix_s)
        entry = Entry(own.generation, name, payload.nbytes, expires_s, now_s, now_s, 0, mark)
        return header.pack(), entry

    def _end(self, move: Move) -> None:
        if move.error is not None:
            log.debug("block not stored", extra={"error": str(move.error)})
            self._allocator.give_back(self._under_way.pop(move.tag).own)
            return
        own, entry, earlier = self._under_way[move.tag]
        self._allocator.publish(own, entry)
        del self._under_way[move.tag]
        self._outcomes[move.tag] = "puts"
        if earlier is not None:
            self._allocator.withdraw(earlier, None)

    def _keeps(self, found: Found, block: Offered) -> bool:
        """Whether the block is there already and as good; its life is made longer if need be."""
        entry, now_unix_s = found.entry, self._now_unix_s
        if entry.num_bytes != block.payload.nbytes or entry.is_due(now_unix_s):
            return False
        is_exact = entry.mark.provenance is Provenance.EXACT
        if block.mark.provenance is Provenance.EXACT and not is_exact:
            return False
        wanted_s = math.inf if block.ttl_s is None else now_unix_s + block.ttl_s / 2
        if entry.expires_s and entry.expires_s < wanted_s:
            return self._allocator.extend(found, _expiry_s(now_unix_s, block.ttl_s))
        return True


def _expiry_s(now_unix_s: float, ttl_s: float | None) -> int:
    """Whole seconds, rounded up; 0 for never."""
    return 0 if ttl_s is None else min(math.ceil(now_unix_s + ttl_s), 0xFFFFFFFF)
