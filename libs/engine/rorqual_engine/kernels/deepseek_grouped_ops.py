"""Calls the grouped product on tensors: bf16, on the CPU."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from rorqual_engine.kernels import deepseek_grouped as k
from rorqual_engine.kernels.parallel import KernelCall
from rorqual_engine.kernels.simd import LANES
from rorqual_engine.kernels.tiles import TILE_ROWS

SERIAL_ROWS = 64
"""Fewer rows are not worth waking a second thread."""
_MOST_VALUES = 1 << 17
"""Of one group's matrix; larger ones are better off in the library's products."""


def supports_grouped(width: int, out_width: int) -> bool:
    return not (width % LANES or out_width % LANES) and width * out_width <= _MOST_VALUES


def grouped_product(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """bf16 [T, groups * out] of x [groups, T, in] and matrices [groups, in, out]."""
    groups, num_rows, width = x.shape
    out_width = matrices.shape[2]
    target = x.new_empty((num_rows, groups * out_width))
    num_items = groups * -(-num_rows // TILE_ROWS)
    args = np.array(
        [
            0, num_items, num_rows, groups, width, out_width, x.data_ptr(), matrices.data_ptr(),
            target.data_ptr(),
        ],
        dtype=np.int64,
    )  # fmt: skip
    threads = 1 if num_rows < SERIAL_ROWS else torch.get_num_threads()
    _compiled()(args.ctypes.data, threads)
    return target


@cache
def _compiled() -> KernelCall:
    return KernelCall(k.grouped_rows)
