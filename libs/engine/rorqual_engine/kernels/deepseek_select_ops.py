"""Calls the kernel that chooses entries on tensors: bf16, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from rorqual_engine.kernels import deepseek_select as k
from rorqual_engine.kernels.deepseek_attention_ops import PagedRows, RowTables, Turn
from rorqual_engine.kernels.parallel import KernelCall
from rorqual_engine.kernels.simd import LANES
from rorqual_engine.kv import PAGE_TOKENS

SERIAL_ROWS = 12
"""Fewer rows are not worth waking a second thread."""
_ANY = 1 << 30


@dataclass(frozen=True)
class Choice:
    """How many entries and blocks; blocks of 0 = none are asked for."""

    top_k: int
    num_blocks: int
    block_entries: int


def supports_select(head_dim: int, ratio: int) -> bool:
    return head_dim % LANES == 0 and ratio > 0 and PAGE_TOKENS // ratio % LANES == 0


def select(
    query: torch.Tensor,
    weights: torch.Tensor,
    keys: PagedRows,
    tables: RowTables,
    turn: Turn | None,
    choice: Choice,
    bounds: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(entries int32 [T, <= top_k], blocks int32 [T, <= num_blocks] or None).

    query: [T, heads, dim], rotated already where turn is None; weights: fp32 [T, heads];
    keys: the view [pages, entries, dim] of memory that lies [pages, dim, entries];
    bounds: int32 [T, b], blocks that may be chosen from.
    """
    num_rows, heads, dim = query.shape
    most = tables.highest_end // keys.ratio
    chosen = torch.empty((num_rows, min(choice.top_k, most)), dtype=torch.int32)
    most_blocks = min(choice.num_blocks, -(-most // choice.block_entries))
    blocks = torch.empty((num_rows, most_blocks), dtype=torch.int32) if choice.num_blocks else None
    threads = 1 if num_rows < SERIAL_ROWS else torch.get_num_threads()
    args = np.array(
        [
            0, num_rows, max(1, min(8, num_rows // (4 * threads))), query.data_ptr(), heads, dim,
            0 if turn is None else turn.cos.shape[1], 0 if turn is None else turn.cos.data_ptr(),
            0 if turn is None else turn.sin.data_ptr(), turn is not None, weights.data_ptr(),
            tables.at.positions, tables.at.row_chunk, keys.address,
            keys.stride_bytes, tables.at.pages, tables.at.page_starts,
            keys.ratio, keys.view.shape[1], choice.top_k, chosen.data_ptr(), chosen.shape[1],
            0 if blocks is None else blocks.data_ptr(), _ANY if blocks is None else most_blocks,
            0 if bounds is None else bounds.data_ptr(), 0 if bounds is None else bounds.shape[1],
            choice.block_entries, most,
        ],
        dtype=np.int64,
    )  # fmt: skip
    _compiled()(args.ctypes.data, threads)
    return chosen, blocks


@cache
def _compiled() -> KernelCall:
    return KernelCall(k.select_rows)
