"""Choosing and scoring tokens of rows on the CPU: one kernel call each, on all compute threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rorqual_engine.kernels import choose, score
from rorqual_engine.kernels.parallel import KernelCall

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

_kernel = cache(KernelCall)


class Columns(NamedTuple):
    """What every row asks for. B rows."""

    inverse: FloatArray
    """[B] 1 / temperature; 0 = greedy"""
    top_k: Int64Array
    """[B] 0 = off"""
    top_p: DoubleArray
    """[B] 1 = off"""
    min_p: DoubleArray
    """[B] 0 = off"""
    noise: DoubleArray
    """[B] in [0, 1)"""


class Scores(NamedTuple):
    """Log probabilities of one row."""

    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


def choose_ids(
    logits: torch.Tensor,
    replaced: Mapping[int, torch.Tensor],
    bitmask: torch.Tensor | None,
    columns: Columns,
) -> Int64Array:
    """[B], one token a row.

    logits: fp32 or bf16 [B, vocab]; replaced: fp32 rows that stand in for those of the same number
    bitmask: int32 [B, ceil(vocab / 32)], bit set = allowed
    """
    logits = _with_near_elements(logits)
    row_at, mask_at = _addresses(logits), np.zeros(len(logits), np.int64)
    is_half = np.full(len(logits), _is_half(logits), np.int64)
    for row, copy in replaced.items():
        row_at[row], is_half[row] = copy.data_ptr(), 0
    if bitmask is not None:
        bitmask = bitmask.contiguous()
        mask_at = _addresses(bitmask)
    ids = np.empty(len(logits), np.int64)
    args = np.zeros(choose.NUM_SLOTS, np.int64)
    args[choose.NUM_ROWS], args[choose.VOCAB] = logits.shape
    args[choose.ROWS], args[choose.MASKS] = row_at.ctypes.data, mask_at.ctypes.data
    args[choose.HALVES] = is_half.ctypes.data
    args[choose.INVERSE : choose.NOISE + 1] = [column.ctypes.data for column in columns]
    args[choose.TARGET] = ids.ctypes.data
    _kernel(choose.choose_rows)(args.ctypes.data, _num_threads(logits))
    return ids


def score_rows(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[Scores]:
    """Of one token a row, and of the num_top likeliest of the row, likeliest first, the lower id
    first among equals.

    logits: fp32 or bf16 [B, vocab]
    """
    logits = _with_near_elements(logits)
    num_rows, vocab = logits.shape
    chosen = np.array(token_ids, np.int64)
    ends = np.cumsum([min(num, vocab) for num in num_top], dtype=np.int64)
    found = np.empty(num_rows, np.float64)
    top_ids, top = np.empty(ends[-1], np.int64), np.empty(ends[-1], np.float64)
    args = np.zeros(score.NUM_SLOTS, np.int64)
    args[score.NUM_ROWS], args[score.VOCAB] = num_rows, vocab
    row_at = _addresses(logits)
    args[score.ROWS], args[score.HALF] = row_at.ctypes.data, _is_half(logits)
    columns = (chosen, ends, found, top_ids, top)
    args[score.CHOSEN : score.TOP_LOGPROBS + 1] = [column.ctypes.data for column in columns]
    _kernel(score.score_rows)(args.ctypes.data, _num_threads(logits))
    firsts = [0, *ends[:-1].tolist()]
    return [
        Scores(logprob, top_ids[first:end].tolist(), top[first:end].tolist())
        for logprob, first, end in zip(found.tolist(), firsts, ends.tolist(), strict=True)
    ]


def _num_threads(rows: torch.Tensor) -> int:
    return max(1, min(len(rows), torch.get_num_threads()))


def _is_half(logits: torch.Tensor) -> bool:
    assert logits.dtype in (torch.float32, torch.bfloat16)
    return logits.dtype == torch.bfloat16


def _with_near_elements(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.stride(1) == 1 else logits.contiguous()


def _addresses(rows: torch.Tensor) -> Int64Array:
    """Of every row."""
    step = rows.element_size() * rows.stride(0)
    found: Int64Array = rows.data_ptr() + step * np.arange(len(rows), dtype=np.int64)
    return found
