"""The rows of one pass through some layers, and where their state lies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rorqual_engine.batch import Batch, SequenceChunk
from rorqual_engine.errors import BadChunk
from rorqual_engine.kernels.deepseek_attention_ops import RowTables
from rorqual_engine.kernels.deepseek_compress_ops import EntryTables, completed_entries
from rorqual_engine.kv import PAGE_TOKENS
from rorqual_engine.ref.places import RowPlaces

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class ChunkRows:
    """Consecutive rows of one sequence."""

    first: int
    """Row of the batch where they begin."""
    count: int
    start: int
    """Position of the first of them."""
    slot: int
    """Window slot."""
    page_ids: npt.NDArray[np.int32]
    """From position 0 on."""
    floor: int
    """No window key before this position is read."""
    num_stored: int
    """Entries that end before this position are in the pages already."""
    previous_ids: tuple[int, ...] = ()
    """Ids right before start, where a replay begins."""
    device: torch.device = _CPU

    @property
    def end(self) -> int:
        return self.start + self.count

    @cached_property
    def pages(self) -> torch.Tensor:
        """page_ids as int64."""
        return torch.from_numpy(self.page_ids).long().to(self.device)

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.count)


@dataclass(frozen=True)
class RingPlaces:
    """Where rows of a pass go in rings of one size, on the pass's device."""

    kept: torch.Tensor | None
    """int64: the rows that are not overwritten by later ones; None = all of them"""
    slots: torch.Tensor
    """int64, of each kept row"""
    places: torch.Tensor
    """int64, of each kept row"""


@dataclass(frozen=True)
class EntryPlaces:
    """The N entries that a pass completes and the s tokens behind each, on the pass's device."""

    numbers: torch.Tensor
    """int64 [N]"""
    sequences: torch.Tensor
    """int32 [N] chunks of the pass"""
    pages: torch.Tensor
    """int64 [N]"""
    last_rows: torch.Tensor
    """int64 [N] rows that complete them"""
    positions: torch.Tensor
    """int64 [N, s] of the tokens; below 0 = there is none"""
    rows: torch.Tensor
    """int64 [N, s] the tokens' rows where they are of this pass, else anything in 0..T - 1"""
    old: torch.Tensor
    """int64 [O] those of an earlier pass, in the rings: places among N * s"""
    old_slots: torch.Tensor
    """int64 [O]"""
    old_positions: torch.Tensor
    """int64 [O]; below 0 = there is none"""


@dataclass(frozen=True)
class Rows:
    """Rows chunk after chunk, T in all."""

    token_ids: torch.Tensor
    """int64 [T]"""
    positions: torch.Tensor
    """int64 [T]"""
    is_image: torch.Tensor | None
    """bool [T]; None = no row is of an image"""
    chunks: tuple[ChunkRows, ...]
    grams: torch.Tensor | None = None
    """int64 [T, n] classes of each row's token and those before it; for models with Engram"""
    _entries: dict[int, EntryTables] = field(default_factory=dict, repr=False)
    _entry_places: dict[tuple[int, int], EntryPlaces] = field(default_factory=dict, repr=False)
    _ring_places: dict[int, RingPlaces] = field(default_factory=dict, repr=False)

    @cached_property
    def tables(self) -> RowTables:
        """The same for compiled kernels. From the chunks alone: no device is waited for."""
        counts = [chunk.count for chunk in self.chunks]
        positions = [np.arange(chunk.start, chunk.end, dtype=np.int64) for chunk in self.chunks]
        pages = [chunk.page_ids for chunk in self.chunks]
        starts = np.cumsum([0, *(len(part) for part in pages)])[:-1]

        def column(values: Iterable[int]) -> npt.NDArray[np.int64]:
            return np.array(list(values), dtype=np.int64)

        return RowTables(
            positions=np.concatenate(positions),
            row_chunk=np.repeat(np.arange(len(counts), dtype=np.int64), counts),
            starts=column(chunk.start for chunk in self.chunks),
            ends=column(chunk.end for chunk in self.chunks),
            firsts=column(chunk.first for chunk in self.chunks),
            floors=column(chunk.floor for chunk in self.chunks),
            slots=column(chunk.slot for chunk in self.chunks),
            num_stored=column(chunk.num_stored for chunk in self.chunks),
            pages=np.concatenate(pages),
            page_starts=starts.astype(np.int32),
        )

    @cached_property
    def places(self) -> RowPlaces:
        """The same for kernels of devices."""
        tables = self.tables
        page_starts = np.append(tables.page_starts, len(tables.pages))
        columns = (
            tables.row_chunk, tables.positions, tables.firsts, tables.starts, tables.floors,
            tables.slots, tables.pages, page_starts,
        )  # fmt: skip
        device = self.positions.device
        return RowPlaces(*(torch.from_numpy(c.astype(np.int32)).to(device) for c in columns))

    def entries(self, ratio: int) -> EntryTables:
        """The entries that these rows complete, for compiled kernels."""
        if ratio not in self._entries:
            self._entries[ratio] = completed_entries(self.tables, ratio)
        return self._entries[ratio]

    def entry_places(self, ratio: int, spans: int) -> EntryPlaces:
        """The same entries, each made of its own `ratio` tokens and of those of the spans before,
        spans * ratio in all."""
        key = ratio, spans
        if key not in self._entry_places:
            self._entry_places[key] = self._find_entry_places(ratio, spans)
        return self._entry_places[key]

    def _find_entry_places(self, ratio: int, spans: int) -> EntryPlaces:
        tables, entries = self.tables, self.entries(ratio)
        chunk, numbers = entries.chunk, entries.numbers
        first = (numbers - spans + 1)[:, None] * ratio
        positions = first + np.arange(spans * ratio)
        row = tables.firsts[chunk][:, None] + positions - tables.starts[chunk][:, None]
        page = tables.page_starts[chunk] + numbers * ratio // PAGE_TOKENS
        old = np.flatnonzero(positions < tables.starts[chunk][:, None])
        return EntryPlaces(
            numbers=self._here(numbers),
            sequences=self._here(chunk.astype(np.int32)),
            pages=self._here(tables.pages[page].astype(np.int64)),
            last_rows=self._here(entries.last_rows),
            positions=self._here(positions),
            rows=self._here(row.clip(0, len(tables.positions) - 1)),
            old=self._here(old),
            old_slots=self._here(tables.slots[chunk][old // positions.shape[1]]),
            old_positions=self._here(positions.ravel()[old]),
        )

    def ring_places(self, size: int) -> RingPlaces:
        """For rings of so many rows: of rows that share a place the last stays."""
        if size not in self._ring_places:
            self._ring_places[size] = self._find_ring_places(size)
        return self._ring_places[size]

    def _find_ring_places(self, size: int) -> RingPlaces:
        tables = self.tables
        slots, positions = tables.slots[tables.row_chunk], tables.positions
        kept = None
        if tables.longest > size:
            last = np.flatnonzero(positions + size >= tables.ends[tables.row_chunk])
            slots, positions, kept = slots[last], positions[last], self._here(last)
        return RingPlaces(kept, self._here(slots), self._here(positions % size))

    def _here(self, values: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(self.positions.device)


def remember(rings: torch.Tensor, rows: Rows, values: torch.Tensor) -> None:
    """Puts every chunk's last rows of values [T, ...] where their positions belong in its slot's
    ring; rings: [slots, ring, ...]."""
    at = rows.ring_places(rings.shape[1])
    rings[at.slots, at.places] = values if at.kept is None else values[at.kept]


def rows_of(
    chunks: Sequence[SequenceChunk],
    batch: Batch,
    device: torch.device,
    image_token_id: int | None,
    *,
    window_slots: int,
    hidden: int,
) -> Rows:
    """window_slots: how many the cache has; hidden: width of embeddings. Raises: BadChunk."""
    slots = [chunk.window for chunk in chunks]
    if any(slot is None for slot in slots) or len(set(slots)) < len(slots):
        raise BadChunk("every chunk needs a window slot of its own")
    laid_out = []
    for c, chunk in enumerate(chunks):
        _check(chunk, window_slots, hidden)
        first, last = (int(row) for row in batch.row_starts[c : c + 2])
        pages = batch.pages[batch.page_starts[c] : batch.page_starts[c + 1]]
        laid_out.append(
            ChunkRows(
                first=first,
                count=last - first,
                start=chunk.start,
                slot=int(chunk.window or 0),
                page_ids=pages,
                floor=chunk.window_floor,
                num_stored=chunk.num_stored,
                previous_ids=tuple(chunk.previous_ids),
                device=device,
            )
        )
    token_ids = torch.from_numpy(batch.token_ids).to(device)
    is_image = None
    if image_token_id is not None and bool((batch.token_ids == image_token_id).any()):
        is_image = token_ids == image_token_id
    positions = torch.from_numpy(batch.positions).to(device)
    return Rows(token_ids, positions, is_image, tuple(laid_out))


def _check(chunk: SequenceChunk, window_slots: int, hidden: int) -> None:
    """Raises: BadChunk."""
    if not 0 <= (chunk.window or 0) < window_slots:
        raise BadChunk(f"window slot {chunk.window} outside 0..{window_slots - 1}")
    if not 0 <= chunk.window_floor <= chunk.start:
        raise BadChunk(f"window floor {chunk.window_floor} is not in 0..{chunk.start}")
    if chunk.defers_late and chunk.all_logits:
        raise BadChunk("rows that wait for the late layers have no logits")
    if chunk.num_stored < 0:
        raise BadChunk(f"{chunk.num_stored} stored tokens")
    if chunk.embeddings is None:
        return
    rows, shape = chunk.embeddings.rows, tuple(chunk.embeddings.values.shape)
    if shape != (len(rows), hidden):
        raise BadChunk(f"embeddings of shape {shape} for {len(rows)} rows of {hidden}")
    if len(rows) and not (rows.min() >= 0 and rows.max() < len(chunk.token_ids)):
        raise BadChunk(f"embeddings for rows outside 0..{len(chunk.token_ids) - 1}")
