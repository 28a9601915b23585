"""Finding keys by position and by number; shared by the kernels that read pages."""

# mypy: ignore-errors

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl

IS_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""The interpreter holds bf16 as integers and would multiply those."""


@triton.jit
def product(a, b):
    """a @ b in fp32, without shortcuts for fp32 operands."""
    if IS_INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def entry_offsets(
    numbers, is_known, pages, page_starts, sequence, per_page, page_stride, row_stride
):
    """Where entries of one sequence begin, int64, counted in values; 0 where not is_known."""
    first_page = tl.load(page_starts + sequence)
    known = tl.where(is_known, numbers, 0)
    page = tl.load(pages + first_page + known // per_page, mask=is_known, other=0)
    return page.to(tl.int64) * page_stride + (known % per_page).to(tl.int64) * row_stride


@triton.jit
def turn_pairs(
    values, cos, sin, row, num_pairs, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr, GOES_BACK: tl.constexpr,
):  # fmt: skip
    """values fp32 [BLOCK_H, BLOCK_D]: the last num_pairs pairs of HEAD_DIM values turned."""
    even, odd = tl.split(tl.reshape(values, (BLOCK_H, BLOCK_D // 2, 2)))
    pair = tl.arange(0, BLOCK_D // 2) - (HEAD_DIM // 2 - num_pairs)
    is_turned = (pair >= 0) & (pair < num_pairs)
    at = row.to(tl.int64) * num_pairs + pair
    c = tl.load(cos + at, mask=is_turned, other=1.0)[None, :]
    s = tl.load(sin + at, mask=is_turned, other=0.0)[None, :]
    if GOES_BACK:
        s = -s
    turned = tl.join(even * c - odd * s, odd * c + even * s)
    return tl.reshape(turned, (BLOCK_H, BLOCK_D))


def check_rows(*values: torch.Tensor) -> None:
    """What is read and written row by row. Raises: ValueError unless rows are contiguous."""
    for tensor in values:
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(f"rows of strides {tensor.stride()} are not contiguous")


def next_power(value: int, least: int = 1) -> int:
    return max(least, triton.next_power_of_2(value))
