"""Calls the attention kernels on tensors: bf16, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rorqual_engine.kernels import deepseek_attention as k
from rorqual_engine.kernels.parallel import KernelCall
from rorqual_engine.kernels.simd import LANES

SERIAL_ROWS = 12
"""Fewer rows are not worth waking a second thread."""
Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]


class Addresses(NamedTuple):
    """Of the tables of the same names."""

    positions: int
    row_chunk: int
    starts: int
    ends: int
    firsts: int
    floors: int
    slots: int
    pages: int
    page_starts: int


@dataclass(frozen=True)
class RowTables:
    """Where the rows of a pass and their state lie; C chunks, T rows."""

    positions: Int64Array
    """[T]"""
    row_chunk: Int64Array
    """[T]"""
    starts: Int64Array
    """[C] position of a chunk's first row"""
    ends: Int64Array
    """[C] position behind its last row"""
    firsts: Int64Array
    """[C] row where it begins"""
    floors: Int64Array
    slots: Int64Array
    num_stored: Int64Array
    pages: Int32Array
    page_starts: Int32Array
    """[C] into pages"""

    @cached_property
    def longest(self) -> int:
        """Rows of the longest chunk."""
        return int((self.ends - self.starts).max())

    @cached_property
    def highest_end(self) -> int:
        """Positions that the chunks reach up to."""
        return int(self.ends.max())

    @cached_property
    def at(self) -> Addresses:
        """Where the tables lie, for kernels."""
        return Addresses(
            *(
                table.ctypes.data
                for table in (
                    self.positions, self.row_chunk, self.starts, self.ends, self.firsts,
                    self.floors, self.slots, self.pages, self.page_starts,
                )
            )
        )  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """cos and sin of every position, fp32 [positions, pairs]."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True)
class PagedRows:
    """bf16 rows inside pages or slots: the view [pages, rows, dim] of one layer's section."""

    view: torch.Tensor
    ratio: int = 0

    @property
    def address(self) -> int:
        return self.view.data_ptr()

    @property
    def stride_bytes(self) -> int:
        return self.view.stride(0) * self.view.element_size()

    @property
    def row_bytes(self) -> int:
        """From one row to the next."""
        return self.view.stride(1) * self.view.element_size()


def supports_attention(head_dim: int, q_rank: int, num_heads: int) -> bool:
    return not (head_dim % LANES or q_rank % LANES or num_heads % 4)


def prepare(
    source: torch.Tensor,
    tables: RowTables,
    turn: Turn,
    q_norm: torch.Tensor,
    kv_norm: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q latent [T, q_rank], kv [T, dim], normed and rotated) of source [T, q_rank + dim]."""
    num_rows, q_rank, dim = len(source), len(q_norm), len(kv_norm)
    q_latent = source.new_empty((num_rows, q_rank))
    kv = source.new_empty((num_rows, dim))
    args = np.array(
        [
            0, num_rows, 32, source.data_ptr(), source.stride(0), q_rank, dim,
            turn.cos.shape[1], turn.cos.data_ptr(), turn.sin.data_ptr(),
            tables.at.positions, q_norm.data_ptr(), kv_norm.data_ptr(),
            q_latent.data_ptr(), kv.data_ptr(), 0,
        ],
        dtype=np.int64,
    )  # fmt: skip
    args.view(np.float64)[k.P_EPS] = eps
    _compiled()[0](args.ctypes.data, _threads(num_rows // 16))
    return q_latent, kv


def attend(
    query: torch.Tensor,
    kv: torch.Tensor,
    tables: RowTables,
    turn: Turn,
    ring: PagedRows,
    entries: PagedRows | None,
    selection: torch.Tensor | None,
    sinks: torch.Tensor,
    *,
    window: int,
    groups: int,
    q_norm_eps: float | None,
    reaches: Int64Array | None = None,
) -> torch.Tensor:
    """Attention, rotated back: [groups, T, heads / groups * dim]. kv goes to the rings.

    query: [T, heads * dim], neither normed nor rotated; kv: as prepare gives it; selection: int32
    [T, k], ascending, -1 behind the last; None = every visible entry.
    q_norm_eps: None = query heads are not normed. reaches: [T] the last position that each row
    sees, in its own chunk; kv goes nowhere then. None = its own.
    """
    num_rows, dim = kv.shape
    last_seen = tables.positions if reaches is None else reaches
    heads = query.shape[1] // dim
    output = query.new_empty((groups, num_rows, heads // groups * dim))
    num_entries = 0
    if entries is not None:
        most = tables.highest_end // entries.ratio
        num_entries = most if selection is None else selection.shape[1]
    threads = _threads(num_rows)
    is_one_phase = reaches is None and tables.longest <= ring.view.shape[1] // 2
    args = np.array(
        [
            0, num_rows, max(1, min(16, num_rows // (4 * threads))), query.data_ptr(), heads, dim,
            turn.cos.shape[1], turn.cos.data_ptr(), turn.sin.data_ptr(), kv.data_ptr(),
            tables.at.positions, tables.at.row_chunk,
            tables.at.starts, tables.at.firsts, tables.at.floors,
            ring.address, ring.stride_bytes, tables.at.slots, ring.view.shape[1], window,
            *_paged(entries, tables), 0 if selection is None else selection.data_ptr(),
            0 if selection is None else selection.shape[1], num_entries, sinks.data_ptr(),
            output.data_ptr(), groups, q_norm_eps is not None, 0, is_one_phase, 0,
            tables.at.ends, ring.row_bytes, last_seen.ctypes.data,
        ],
        dtype=np.int64,
    )  # fmt: skip
    args.view(np.float64)[k.EPS] = q_norm_eps or 0.0
    _, run = _compiled()
    run(args.ctypes.data, threads)
    if reaches is None and not is_one_phase:
        args[k.NEXT], args[k.WRITE_ONLY], args[k.WRITES_RING] = 0, 1, 1
        run(args.ctypes.data, 1)
    return output


def _paged(entries: PagedRows | None, tables: RowTables) -> tuple[int, ...]:
    """ENTRY_BASE .. PER_PAGE"""
    if entries is None:
        return (0,) * 6
    pages, starts = tables.at.pages, tables.at.page_starts
    return (
        entries.address, entries.stride_bytes, pages, starts, entries.ratio,
        entries.view.shape[1],
    )  # fmt: skip


def _threads(size: int) -> int:
    return 1 if size < SERIAL_ROWS else torch.get_num_threads()


@cache
def _compiled() -> tuple[KernelCall, KernelCall]:
    return KernelCall(k.prepare_rows), KernelCall(k.attend_rows)
