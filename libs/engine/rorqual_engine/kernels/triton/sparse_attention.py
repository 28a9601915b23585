"""Twins of ref/sparse_attention.py.

A program is a row and some of its heads. It goes over the window's keys, then over the chosen
entries, in blocks of fixed size and order, so a row has the same bits in any batch.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rorqual_engine.kernels.triton.places import (
    check_rows,
    entry_offsets,
    next_power,
    product,
    turn_pairs,
)
from rorqual_engine.ref.places import RowPlaces

_TILE_BYTES = 16 << 10
"""Of one block of keys. With two blocks in flight a program of 512 dimensions then needs 65 KiB of
shared memory, which every GPU since 2020 has."""


@triton.jit
def _add_keys(query, keys, is_seen, scale, best, total, acc):
    """One block of keys into the running softmax."""
    scores = product(query, tl.trans(keys)) * scale
    scores = tl.where(is_seen[None, :], scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, 1))
    shrink = tl.exp(best - new_best)
    weights = tl.exp(scores - new_best[:, None])
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None]
    acc += product(weights.to(keys.dtype), keys)
    return new_best, total, acc


@triton.jit(do_not_specialize=["select_row", "num_selected"])
def _attend(
    query, fresh, ring, entries, selection, sinks, cos, sin, target, sequences, positions,
    first_rows, starts, floors, slots, pages, page_starts, scale, query_row, query_head,
    fresh_row, ring_slot, ring_place, num_places, entry_page, entry_row, per_page, select_row,
    num_selected, num_heads, num_pairs, WINDOW: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    dim = tl.arange(0, BLOCK_D)
    is_dim = dim < HEAD_DIM
    is_query = (head < num_heads)[:, None] & is_dim[None, :]
    at = row.to(tl.int64) * query_row + head[:, None] * query_head + dim[None, :]
    q = tl.load(query + at, mask=is_query, other=0.0)
    sequence = tl.load(sequences + row)
    position = tl.load(positions + row)
    start = tl.load(starts + sequence)
    lowest = tl.maximum(tl.load(floors + sequence), 0)
    first_row = tl.load(first_rows + sequence)
    slot = tl.load(slots + sequence).to(tl.int64)
    best = tl.load(sinks + head, mask=head < num_heads, other=0.0)
    total = tl.full((BLOCK_H,), 1.0, tl.float32)
    acc = tl.zeros((BLOCK_H, BLOCK_D), tl.float32)
    column = tl.arange(0, BLOCK_N)
    for block in range(0, WINDOW, BLOCK_N):
        place = position - (WINDOW - 1) + block + column
        is_seen = (place >= lowest) & (place <= position)
        is_fresh = place >= start
        new_at = (first_row + place - start).to(tl.int64) * fresh_row
        old_at = slot * ring_slot + (tl.where(is_seen, place, 0) % num_places) * ring_place
        new_mask = (is_seen & is_fresh)[:, None] & is_dim[None, :]
        old_mask = (is_seen & (place < start))[:, None] & is_dim[None, :]
        new = tl.load(fresh + new_at[:, None] + dim[None, :], mask=new_mask, other=0.0)
        old = tl.load(ring + old_at[:, None] + dim[None, :], mask=old_mask, other=0.0)
        keys = tl.where(is_fresh[:, None], new, old)
        best, total, acc = _add_keys(q, keys, is_seen, scale, best, total, acc)
    for block in range(0, num_selected, BLOCK_N):
        is_column = block + column < num_selected
        number = tl.load(
            selection + row.to(tl.int64) * select_row + block + column, mask=is_column, other=-1
        )
        is_seen = number >= 0
        from_entry = entry_offsets(
            number, is_seen, pages, page_starts, sequence, per_page, entry_page, entry_row
        )
        mask = is_seen[:, None] & is_dim[None, :]
        keys = tl.load(entries + from_entry[:, None] + dim[None, :], mask=mask, other=0.0)
        best, total, acc = _add_keys(q, keys, is_seen, scale, best, total, acc)
    acc = acc / total[:, None]
    turned = turn_pairs(acc, cos, sin, row, num_pairs, HEAD_DIM, BLOCK_D, BLOCK_H, True)
    to = (row.to(tl.int64) * num_heads + head)[:, None] * HEAD_DIM + dim[None, :]
    tl.store(target + to, turned.to(target.dtype.element_ty), mask=is_query)


@triton.jit
def _rotate(
    rows, cos, sin, target, row_stride, head_stride, num_heads, num_pairs,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
    GOES_BACK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    dim = tl.arange(0, BLOCK_D)
    mask = (head < num_heads)[:, None] & (dim < HEAD_DIM)[None, :]
    at = row.to(tl.int64) * row_stride + head[:, None] * head_stride + dim[None, :]
    values = tl.load(rows + at, mask=mask, other=0.0).to(tl.float32)
    turned = turn_pairs(values, cos, sin, row, num_pairs, HEAD_DIM, BLOCK_D, BLOCK_H, GOES_BACK)
    to = (row.to(tl.int64) * num_heads + head)[:, None] * HEAD_DIM + dim[None, :]
    tl.store(target + to, turned.to(target.dtype.element_ty), mask=mask)


def rotate_pairs(
    rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, back: bool = False
) -> torch.Tensor:
    num_rows, num_heads, dim = rows.shape
    target = rows.new_empty(rows.shape)
    if num_rows:
        rows = rows if rows.stride(2) == 1 else rows.contiguous()
        block = min(8, next_power(num_heads))
        _rotate[(num_rows, triton.cdiv(num_heads, block))](
            rows, cos.contiguous(), sin.contiguous(), target, rows.stride(0), rows.stride(1),
            num_heads, cos.shape[1], HEAD_DIM=dim, BLOCK_D=next_power(dim, 2), BLOCK_H=block,
            GOES_BACK=back,
        )  # fmt: skip
    return target


def attend_entries(
    query: torch.Tensor,
    fresh: torch.Tensor,
    ring: torch.Tensor,
    entries: torch.Tensor | None,
    selection: torch.Tensor | None,
    sinks: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    places: RowPlaces,
    *,
    window: int,
) -> torch.Tensor:
    num_rows, num_heads, dim = query.shape
    target = query.new_empty(query.shape)
    if not num_rows:
        return target
    query = query if query.stride(2) == 1 else query.contiguous()
    if entries is None or selection is None:
        entries, selection = ring, places.positions[:, None][:, :0]
    selection = selection if selection.stride(1) == 1 else selection.contiguous()
    check_rows(fresh, ring, entries)
    block_d = next_power(dim, 16)
    block_n = max(16, min(64, _TILE_BYTES // (block_d * query.element_size())))
    block_h = 16
    _attend[(num_rows, triton.cdiv(num_heads, block_h))](
        query, fresh, ring, entries, selection, sinks, cos.contiguous(), sin.contiguous(), target,
        places.sequences, places.positions, places.first_rows, places.starts, places.floors,
        places.slots, places.pages, places.page_starts, dim**-0.5, query.stride(0),
        query.stride(1), fresh.stride(0), ring.stride(0), ring.stride(1), ring.shape[1],
        entries.stride(0), entries.stride(1), entries.shape[1], selection.stride(0),
        selection.shape[1], num_heads, cos.shape[1], WINDOW=window, HEAD_DIM=dim,
        BLOCK_D=block_d, BLOCK_H=block_h, BLOCK_N=block_n, num_stages=2,
    )  # fmt: skip
    return target
