"""Calls the kernels of residual streams on tensors: bf16, on the CPU, contiguous."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from rorqual_engine.kernels import deepseek_streams as k
from rorqual_engine.kernels.parallel import KernelCall
from rorqual_engine.kernels.simd import LANES

SERIAL_ROWS = 40
"""Fewer rows are not worth waking a second thread."""


@dataclass(frozen=True)
class StreamWeights:
    """One sublayer's mixing, fp32: fn [(2 + n) * n, n * D], base, scale [3], norm [D]."""

    fn: torch.Tensor
    base: torch.Tensor
    scale: torch.Tensor
    norm: torch.Tensor
    eps: float
    hc_eps: float
    iterations: int


def supports_streams(num_streams: int, hidden: int) -> bool:
    return hidden % LANES == 0 and (2 + num_streams) * num_streams % 4 == 0


def read_streams(
    streams: torch.Tensor, weights: StreamWeights, pre_in: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x, pre, post, comb) of streams [T, n, D]; pre_in: fp32 [T, n], None = the row's own pre."""
    num_rows, n, hidden = streams.shape
    x = streams.new_empty((num_rows, hidden))
    pre, post = (torch.empty((num_rows, n), dtype=torch.float32) for _ in range(2))
    comb = torch.empty((num_rows, n, n), dtype=torch.float32)
    threads, step = schedule(num_rows)
    args = np.array(
        [
            0, num_rows, step, streams.data_ptr(), n, hidden, weights.fn.data_ptr(),
            weights.base.data_ptr(), weights.scale.data_ptr(),
            (pre if pre_in is None else pre_in).data_ptr(), weights.norm.data_ptr(),
            x.data_ptr(), pre.data_ptr(), post.data_ptr(), comb.data_ptr(), 0, 0,
            weights.iterations,
        ],
        dtype=np.int64,
    )  # fmt: skip
    args.view(np.float64)[[k.EPS, k.HC_EPS]] = weights.eps, weights.hc_eps
    _compiled()[0](args.ctypes.data, threads)
    return x, pre, post, comb


def write_streams(
    streams: torch.Tensor, output: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    """The streams after a sublayer whose output is [T, D]."""
    num_rows, n, hidden = streams.shape
    target = torch.empty_like(streams)
    threads, step = schedule(num_rows)
    args = np.array(
        [
            0, num_rows, step, streams.data_ptr(), n, hidden, output.data_ptr(),
            post.data_ptr(), comb.data_ptr(), target.data_ptr(),
        ],
        dtype=np.int64,
    )  # fmt: skip
    _compiled()[1](args.ctypes.data, threads)
    return target


def norm_rows(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm of bf16 rows [T, width], which may be columns of a wider matrix."""
    num_rows, width = rows.shape
    target = torch.empty((num_rows, width), dtype=rows.dtype)
    threads, step = schedule(num_rows // 8)
    args = np.array(
        [
            0, num_rows, 8 * step, rows.data_ptr(), rows.stride(0), width, weight.data_ptr(),
            target.data_ptr(), 0,
        ],
        dtype=np.int64,
    )  # fmt: skip
    args.view(np.float64)[k.N_EPS] = eps
    _compiled()[2](args.ctypes.data, threads)
    return target


def schedule(num_rows: int) -> tuple[int, int]:
    """(threads, rows given out at once)."""
    threads = 1 if num_rows < SERIAL_ROWS else torch.get_num_threads()
    return threads, max(1, num_rows // (4 * threads))


@cache
def _compiled() -> tuple[KernelCall, KernelCall, KernelCall]:
    return KernelCall(k.read_rows), KernelCall(k.write_rows), KernelCall(k.norm_rows)
