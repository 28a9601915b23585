"""Twins of ref/index.py."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rorqual_engine.kernels.triton.keys import (
    DIGIT_BITS,
    NUM_BINS,
    NUM_DIGITS,
    digits_of,
    order_key,
    sum_above,
)
from rorqual_engine.kernels.triton.places import entry_offsets, next_power, product
from rorqual_engine.ref.places import RowPlaces

_BLOCK = 1024
_BLOCK_COLUMNS = 64
_BLOCK_PEAKS = 256


@triton.jit
def _column_number(
    column, is_column, row, blocks, blocks_stride, block_entries, HAS_BLOCKS: tl.constexpr
):
    """The entry a column stands for, -1 = none."""
    if HAS_BLOCKS:
        at = row.to(tl.int64) * blocks_stride + column // block_entries
        block = tl.load(blocks + at, mask=is_column, other=-1).to(tl.int32)
        number = tl.where(block < 0, -1, block * block_entries + column % block_entries)
    else:
        number = tl.where(is_column, column, -1)
    return number


@triton.jit(do_not_specialize=["blocks_stride", "num_columns"])
def _scores(
    queries, weights, keys, blocks, target, sequences, positions, pages, page_starts, scale,
    query_row, query_head, weight_row, per_page, key_page, key_row, key_dim, blocks_stride,
    block_entries, num_columns, num_heads, ratio, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, HAS_BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = column < num_columns
    number = _column_number(
        column, is_column, row, blocks, blocks_stride, block_entries, HAS_BLOCKS
    )
    sequence = tl.load(sequences + row)
    visible = (tl.load(positions + row) + 1) // ratio
    is_seen = (number >= 0) & (number < visible)
    source = entry_offsets(
        number, is_seen, pages, page_starts, sequence, per_page, key_page, key_row
    )
    dim = tl.arange(0, BLOCK_D)
    is_dim = dim < DIM
    mask = is_seen[:, None] & is_dim[None, :]
    key = tl.load(keys + source[:, None] + dim[None, :] * key_dim, mask=mask, other=0.0)
    scores = tl.zeros((BLOCK_N,), tl.float32)
    for first in range(0, num_heads, BLOCK_H):
        head = first + tl.arange(0, BLOCK_H)
        is_head = head < num_heads
        at = row.to(tl.int64) * query_row + head[:, None] * query_head + dim[None, :]
        query = tl.load(queries + at, mask=is_head[:, None] & is_dim[None, :], other=0.0)
        weight = tl.load(weights + row.to(tl.int64) * weight_row + head, mask=is_head, other=0.0)
        products = tl.maximum(product(query, tl.trans(key)), 0.0)
        scores += tl.sum(products * weight[:, None], 0)
    scores = tl.where(is_seen, scores * scale, float("-inf"))
    tl.store(target + row.to(tl.int64) * num_columns + column, scores, mask=is_column)


@triton.jit(do_not_specialize=["scores_stride", "blocks_stride", "num_columns", "top_k"])
def _select(
    scores, blocks, target, scores_stride, blocks_stride, block_entries, num_columns, top_k,
    HAS_BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    source = scores + row.to(tl.int64) * scores_stride
    offset = tl.arange(0, BLOCK)
    num_real = 0
    for at in range(0, num_columns, BLOCK):
        value = tl.load(source + at + offset, mask=at + offset < num_columns, other=float("-inf"))
        num_real += tl.sum((value > float("-inf")).to(tl.int32), 0)
    # Of the best value found so far digit by digit, this many columns are still to be taken.
    wanted = tl.minimum(num_real, top_k)
    prefix = tl.full((), 0, tl.int64)
    for step in range(NUM_DIGITS):
        shift = (NUM_DIGITS - 1 - step) * DIGIT_BITS
        counts = tl.zeros((NUM_BINS,), tl.int32)
        for at in range(0, num_columns, BLOCK):
            value = tl.load(
                source + at + offset, mask=at + offset < num_columns, other=float("-inf")
            )
            is_in = digits_of(order_key(value), value > float("-inf"), prefix, shift)
            counts += tl.sum(is_in.to(tl.int32), 0)
        from_here = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts
        digit = tl.max(tl.where(from_here >= wanted, tl.arange(0, NUM_BINS), 0), 0)
        wanted -= sum_above(counts, digit)
        prefix = prefix * NUM_BINS + digit
    num_taken = 0
    num_equal = 0
    to = target + row.to(tl.int64) * top_k
    for at in range(0, num_columns, BLOCK):
        column = at + offset
        value = tl.load(source + column, mask=column < num_columns, other=float("-inf"))
        key = order_key(value)
        is_equal = ((key == prefix) & (value > float("-inf"))).to(tl.int32)
        rank = num_equal + tl.cumsum(is_equal, 0)
        is_taken = (key > prefix) | ((is_equal > 0) & (rank <= wanted))
        place = num_taken + tl.cumsum(is_taken.to(tl.int32), 0) - 1
        number = _column_number(
            column, column < num_columns, row, blocks, blocks_stride, block_entries, HAS_BLOCKS
        )
        tl.store(to + place, number.to(tl.int64), mask=is_taken)
        num_taken += tl.sum(is_taken.to(tl.int32), 0)
        num_equal += tl.sum(is_equal, 0)
    for at in range(0, top_k, BLOCK):
        place = at + offset
        tl.store(
            to + place, place.to(tl.int64) * 0 - 1, mask=(place >= num_taken) & (place < top_k)
        )


@triton.jit(do_not_specialize=["scores_stride", "num_columns", "num_blocks"])
def _peaks(
    scores, target, scores_stride, num_columns, num_blocks, block_entries, BLOCK: tl.constexpr,
    BLOCK_E: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    source = scores + row.to(tl.int64) * scores_stride
    within = tl.arange(0, BLOCK_E)
    newest = -1
    for at in range(0, num_columns, BLOCK):
        column = at + tl.arange(0, BLOCK)
        value = tl.load(source + column, mask=column < num_columns, other=float("-inf"))
        newest = tl.maximum(newest, tl.max(tl.where(value > float("-inf"), column, -1), 0))
    newest = tl.where(newest < 0, -1, newest // block_entries)
    for at in range(0, num_blocks, BLOCK):
        block = at + tl.arange(0, BLOCK)
        column = block[:, None] * block_entries + within[None, :]
        mask = (within < block_entries)[None, :] & (column < num_columns)
        peak = tl.max(tl.load(source + column, mask=mask, other=float("-inf")), 1)
        peak = tl.where(block == newest, float("inf"), peak)
        tl.store(target + row.to(tl.int64) * num_blocks + block, peak, mask=block < num_blocks)


def index_scores(
    queries: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    places: RowPlaces,
    *,
    ratio: int,
    num_entries: int,
    blocks: torch.Tensor | None = None,
    block_entries: int = 8,
) -> torch.Tensor:
    num_rows, num_heads, dim = queries.shape
    num_columns = num_entries if blocks is None else blocks.shape[1] * block_entries
    target = torch.empty((num_rows, num_columns), dtype=torch.float32, device=queries.device)
    if not target.numel():
        return target
    queries, weights = _rows(queries), _rows(weights)
    chosen = places.positions if blocks is None else _rows(blocks)
    _scores[(num_rows, triton.cdiv(num_columns, _BLOCK_COLUMNS))](
        queries, weights, keys, chosen, target, places.sequences, places.positions, places.pages,
        places.page_starts, dim**-0.5, queries.stride(0), queries.stride(1), weights.stride(0),
        keys.shape[1], *keys.stride(), chosen.stride(0), block_entries,
        num_columns, num_heads, ratio, DIM=dim, BLOCK_D=next_power(dim, 16), BLOCK_H=16,
        BLOCK_N=_BLOCK_COLUMNS, HAS_BLOCKS=blocks is not None,
    )  # fmt: skip
    return target


def best_entries(
    scores: torch.Tensor,
    top_k: int,
    *,
    blocks: torch.Tensor | None = None,
    block_entries: int = 8,
) -> torch.Tensor:
    num_rows, num_columns = scores.shape
    kept = min(top_k, num_columns)
    target = torch.empty((num_rows, kept), dtype=torch.int64, device=scores.device)
    if target.numel():
        scores = _rows(scores)
        chosen = target if blocks is None else _rows(blocks)
        _select[(num_rows,)](
            scores, chosen, target, scores.stride(0), chosen.stride(0), block_entries,
            num_columns, kept, HAS_BLOCKS=blocks is not None, BLOCK=_BLOCK,
        )  # fmt: skip
    return target


def best_blocks(scores: torch.Tensor, num_blocks: int, *, block_entries: int) -> torch.Tensor:
    return best_entries(block_peaks(scores, block_entries=block_entries), num_blocks)


def block_peaks(scores: torch.Tensor, *, block_entries: int) -> torch.Tensor:
    num_rows, num_columns = scores.shape
    num_blocks = triton.cdiv(num_columns, block_entries)
    target = torch.empty((num_rows, num_blocks), dtype=torch.float32, device=scores.device)
    if target.numel():
        scores = _rows(scores)
        _peaks[(num_rows,)](
            scores, target, scores.stride(0), num_columns, num_blocks, block_entries,
            BLOCK=_BLOCK_PEAKS, BLOCK_E=next_power(block_entries),
        )  # fmt: skip
    return target


def _rows(values: torch.Tensor) -> torch.Tensor:
    """The same with its last dimension contiguous."""
    return values if values.stride(-1) == 1 else values.contiguous()
