"""The rows of one pass through some layers, and where their state lies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from rorqual_engine.batch import Batch, SequenceChunk
from rorqual_engine.errors import BadChunk
from rorqual_engine.kernels.deepseek_attention_ops import RowTables
from rorqual_engine.kernels.deepseek_compress_ops import EntryTables, completed_entries
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

    @cached_property
    def tables(self) -> RowTables:
        """The same for compiled kernels."""
        counts = [chunk.count for chunk in self.chunks]
        pages = [chunk.page_ids for chunk in self.chunks]
        starts = np.cumsum([0, *(len(part) for part in pages)])[:-1]

        def column(values: Iterable[int]) -> npt.NDArray[np.int64]:
            return np.array(list(values), dtype=np.int64)

        return RowTables(
            positions=self.positions.cpu().numpy(),
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
