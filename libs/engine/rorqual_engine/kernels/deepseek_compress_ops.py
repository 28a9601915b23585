"""Calls the kernels that make entries on tensors: bf16, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from rorqual_engine.kernels import deepseek_compress as k
from rorqual_engine.kernels.deepseek_attention_ops import Int64Array, PagedRows, RowTables, Turn
from rorqual_engine.kernels.parallel import KernelCall
from rorqual_engine.kernels.simd import LANES

SERIAL_ROWS = 32
"""Fewer rows are not worth waking a second thread."""


@dataclass(frozen=True)
class EntryTables:
    """The entries that rows of a pass complete and that are not stored yet."""

    numbers: Int64Array
    """[N]"""
    chunk: Int64Array
    """[N]"""
    last_rows: Int64Array
    """[N] row of the pass that completes it"""


@dataclass(frozen=True)
class RawRing:
    """fp32 rows, kv then gates: the view [slots, ring, 2 * width] of one layer's section."""

    view: torch.Tensor


@dataclass(frozen=True)
class PoolWeights:
    """dim of an entry; bias fp32 [ratio, width] or None; norm fp32 [dim]."""

    ratio: int
    overlaps: bool
    dim: int
    bias: torch.Tensor | None
    norm: torch.Tensor
    eps: float

    @property
    def width(self) -> int:
        return 2 * self.dim if self.overlaps else self.dim


def supports_compression(head_dim: int, index_dim: int) -> bool:
    return not (head_dim % LANES or index_dim % LANES)


def completed_entries(tables: RowTables, ratio: int) -> EntryTables:
    """What the rows complete, chunk after chunk."""
    firsts = np.maximum(tables.starts // ratio, tables.num_stored // ratio)
    counts = np.maximum(tables.ends // ratio - firsts, 0)
    chunk = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    before = np.cumsum(counts) - counts
    numbers = np.arange(len(chunk), dtype=np.int64) - before[chunk] + firsts[chunk]
    last_rows = (numbers + 1) * ratio - 1 - tables.starts[chunk] + tables.firsts[chunk]
    return EntryTables(numbers, chunk, last_rows)


def pool(
    raw: torch.Tensor,
    entries: EntryTables,
    tables: RowTables,
    ring: RawRing,
    weights: PoolWeights,
) -> torch.Tensor:
    """Normed entries bf16 [N, dim]; then the raw rows go to the rings.

    raw: bf16 [T, 2 * width], which may be columns of a wider matrix.
    """
    target = raw.new_empty((len(entries.numbers), weights.dim))
    bias = 0 if weights.bias is None else weights.bias.data_ptr()
    address, stride = ring.view.data_ptr(), ring.view.stride(0) * 4
    num_ring = ring.view.shape[1]
    args = np.array(
        [
            0, len(target), entries.numbers.ctypes.data, entries.chunk.ctypes.data, weights.ratio,
            weights.overlaps, weights.dim, raw.data_ptr(), raw.stride(0), bias,
            tables.at.starts, tables.at.firsts, tables.at.slots,
            address, stride, num_ring, weights.norm.data_ptr(), target.data_ptr(), 0,
        ],
        dtype=np.int64,
    )  # fmt: skip
    args.view(np.float64)[k.EPS] = weights.eps
    run, keep, _ = _compiled()
    if len(target):
        run(args.ctypes.data, _threads(len(target)))
    kept = np.array(
        [
            0, len(raw), weights.width, weights.ratio, raw.data_ptr(), raw.stride(0), bias,
            tables.at.positions, tables.at.row_chunk, tables.at.ends,
            tables.at.slots, address, stride, num_ring,
        ],
        dtype=np.int64,
    )  # fmt: skip
    keep(kept.ctypes.data, 1)
    return target


def write_entries(
    latent: torch.Tensor,
    keys: torch.Tensor | None,
    key_norm: torch.Tensor | None,
    eps: float,
    entries: EntryTables,
    tables: RowTables,
    turn: Turn,
    entry_pages: PagedRows,
    key_pages: PagedRows | None,
) -> None:
    """latent [N, dim] and keys [N, key dim], bf16, rotated into their pages; keys normed before
    where key_norm fp32 is given."""
    num = len(latent)
    args = np.array(
        [
            0, num, entries.numbers.ctypes.data, entries.chunk.ctypes.data, entry_pages.ratio,
            entry_pages.view.shape[1], latent.shape[1], 0 if keys is None else keys.shape[1],
            turn.cos.shape[1], turn.cos.data_ptr(), turn.sin.data_ptr(), latent.data_ptr(),
            0 if keys is None else keys.data_ptr(),
            0 if key_norm is None else key_norm.data_ptr(), tables.at.pages,
            tables.at.page_starts, entry_pages.address,
            0 if key_pages is None else key_pages.address, entry_pages.stride_bytes, 0,
        ],
        dtype=np.int64,
    )  # fmt: skip
    args.view(np.float64)[k.E_EPS] = eps
    _compiled()[2](args.ctypes.data, _threads(num // 4))


def _threads(size: int) -> int:
    return 1 if size < SERIAL_ROWS else torch.get_num_threads()


@cache
def _compiled() -> tuple[KernelCall, KernelCall, KernelCall]:
    return KernelCall(k.pool_entries), KernelCall(k.keep_raw), KernelCall(k.write_entries)
