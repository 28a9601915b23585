"""Attention over paged KV: rotation, writing keys and values, online softmax.

A layer's part of a page is keys [kv_heads, head_dim, 128] then values [kv_heads, 128, head_dim],
bf16. Per query row everything happens in one order: pages ascending, inside a page keys
ascending; sums over lanes by one tree. No step looks at other rows.
"""

# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np
from numba import njit, types

from rorqual_engine.kernels.simd import (
    LANES,
    copy_bf16,
    fetch_add,
    hmax,
    hsum,
    keep_below,
    load_f32,
    load_i32,
    load_i64,
    round_bf16,
    splat,
    store_f32,
    vadd,
    vdiv,
    vexp,
    vload,
    vload_bf16,
    vmax,
    vmul,
    vstore,
    vstore_bf16,
    vsub,
)
from rorqual_engine.kernels.tiles import TILE_ROWS, tile_fma

PAGE = 128
LOWEST = -1.0e30
"""Stands for minus infinity as a running maximum: differences to it stay numbers."""

(
    NEXT, NUM_ITEMS, ITEMS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, QKV, TARGET, COS, SIN, POOL,
    PAGE_BYTES, LAYER_BYTES_BEFORE, ROW_STARTS, STARTS, PAGE_STARTS, PAGES, WRITES_FIRST,
) = range(18)  # fmt: skip
NUM_SLOTS = 18
ITEM_FIELDS = 4
"""int32 of a work item: chunk, kv head, first row within the chunk, number of rows."""


@njit
def _rotate(source, cos, sin, half, target):
    """RoPE of one head: bf16 at source to fp32 (rounded to bf16) at target."""
    zero = splat(types.float32(0.0))
    for at in range(0, half, LANES):
        first, second = vload_bf16(source, at), vload_bf16(source, half + at)
        c, s = vload_bf16(cos, at), vload_bf16(sin, at)
        minus = round_bf16(vmul(vsub(zero, second), s))
        vstore(target, at, round_bf16(vadd(round_bf16(vmul(first, c)), minus)))
        plus = round_bf16(vmul(first, s))
        vstore(target, half + at, round_bf16(vadd(round_bf16(vmul(second, c)), plus)))


@njit
def _page_address(args, chunk, page_index):
    """Where this layer's part of the chunk's page_index-th page begins."""
    index = load_i32(load_i64(args, PAGE_STARTS), chunk) + page_index
    page = load_i32(load_i64(args, PAGES), index)
    return (
        load_i64(args, POOL)
        + page * load_i64(args, PAGE_BYTES)
        + load_i64(args, LAYER_BYTES_BEFORE)
    )


@njit
def _write_rows(args, chunk, kv_head, first, count, scratch):
    """Rotates the keys of some rows and puts keys and values into their pages."""
    heads, kv_heads = load_i64(args, NUM_HEADS), load_i64(args, NUM_KV_HEADS)
    dim = load_i64(args, HEAD_DIM)
    half = dim // 2
    row_bytes = 2 * dim * (heads + 2 * kv_heads)
    start = load_i32(load_i64(args, STARTS), chunk)
    row_start = load_i32(load_i64(args, ROW_STARTS), chunk)
    head_bytes = 2 * dim * PAGE
    packed = scratch + 4 * dim
    for row in range(first, first + count):
        position = start + row
        page = _page_address(args, chunk, position // PAGE)
        slot = position % PAGE
        key = load_i64(args, QKV) + (row_start + row) * row_bytes + 2 * dim * (heads + kv_head)
        angle = 2 * half * position
        _rotate(key, load_i64(args, COS) + angle, load_i64(args, SIN) + angle, half, scratch)
        for at in range(0, dim, LANES):
            vstore_bf16(packed, at, vload(scratch, at))
        keys = page + kv_head * head_bytes
        for d in range(dim):
            copy_bf16(keys, d * PAGE + slot, packed, d)
        value = key + 2 * dim * kv_heads
        values = page + (kv_heads + kv_head) * head_bytes + 2 * dim * slot
        for at in range(0, dim, LANES):
            vstore_bf16(values, at, vload_bf16(value, at))


@njit
def _soften(scores, num_keys, scale, state, output, dim):
    """One row, one page: scores become weights; the running output is rescaled.

    scores: fp32 [128]; the first num_keys are real, the others' weights become 0.
    state: fp32 [2], running maximum and sum. output: fp32 [dim].
    """
    if num_keys <= 0:
        for at in range(0, PAGE, LANES):
            vstore(scores, at, splat(types.float32(0.0)))
        return
    factor, lowest = splat(scale), splat(types.float32(LOWEST))
    peak = lowest
    for at in range(0, PAGE, LANES):
        scaled = keep_below(vmul(vload(scores, at), factor), at, num_keys, lowest)
        vstore(scores, at, scaled)
        peak = vmax(peak, scaled)
    before = load_f32(state, 0)
    after = max(before, hmax(peak))
    shift, zero = splat(after), splat(types.float32(0.0))
    total = zero
    for at in range(0, PAGE, LANES):
        weight = keep_below(vexp(vsub(vload(scores, at), shift)), at, num_keys, zero)
        vstore(scores, at, weight)
        total = vadd(total, weight)
    page_sum = hsum(total)
    if after == before:
        store_f32(state, 1, load_f32(state, 1) + page_sum)
        return
    shrink = vexp(splat(before - after))
    for at in range(0, dim, LANES):
        vstore(output, at, vmul(vload(output, at), shrink))
    store_f32(state, 0, after)
    store_f32(state, 1, load_f32(state, 1) * hmax(shrink) + page_sum)


@njit
def _load_tile(args, chunk, kv_head, flat, count, query, output, state):
    """Rotated queries of rows flat .. flat + count (token-major, then head) and empty sums."""
    heads, kv_heads = load_i64(args, NUM_HEADS), load_i64(args, NUM_KV_HEADS)
    dim = load_i64(args, HEAD_DIM)
    group = heads // kv_heads
    half = dim // 2
    start = load_i32(load_i64(args, STARTS), chunk)
    row_start = load_i32(load_i64(args, ROW_STARTS), chunk)
    row_bytes = 2 * dim * (heads + 2 * kv_heads)
    zero = splat(types.float32(0.0))
    for r in range(count):
        row, head = (flat + r) // group, kv_head * group + (flat + r) % group
        source = load_i64(args, QKV) + (row_start + row) * row_bytes + 2 * dim * head
        angle = 2 * half * (start + row)
        _rotate(source, load_i64(args, COS) + angle, load_i64(args, SIN) + angle, half,
                query + 4 * dim * r)  # fmt: skip
        for at in range(0, dim, LANES):
            vstore(output, r * dim + at, zero)
        store_f32(state, 2 * r, types.float32(LOWEST))
        store_f32(state, 2 * r + 1, types.float32(0.0))


@njit
def _store_tile(args, chunk, kv_head, flat, count, output, state):
    heads, dim = load_i64(args, NUM_HEADS), load_i64(args, HEAD_DIM)
    group = heads // load_i64(args, NUM_KV_HEADS)
    row_start = load_i32(load_i64(args, ROW_STARTS), chunk)
    for r in range(count):
        row, head = (flat + r) // group, kv_head * group + (flat + r) % group
        target = load_i64(args, TARGET) + 2 * dim * ((row_start + row) * heads + head)
        total = splat(load_f32(state, 2 * r + 1))
        for at in range(0, dim, LANES):
            vstore_bf16(target, at, vdiv(vload(output, r * dim + at), total))


@njit
def _attend_tile(args, chunk, kv_head, flat, count, scratch):
    """Up to TILE_ROWS query rows of one kv head against all their pages."""
    kv_heads, dim = load_i64(args, NUM_KV_HEADS), load_i64(args, HEAD_DIM)
    group = load_i64(args, NUM_HEADS) // kv_heads
    start = load_i32(load_i64(args, STARTS), chunk)
    query = scratch
    output = query + 4 * dim * TILE_ROWS
    scores = output + 4 * dim * TILE_ROWS
    state = scores + 4 * PAGE * TILE_ROWS
    scale = types.float32(1.0 / math.sqrt(dim))
    head_bytes = 2 * dim * PAGE
    _load_tile(args, chunk, kv_head, flat, count, query, output, state)
    context = start + (flat + count - 1) // group + 1
    zero = splat(types.float32(0.0))
    for page_index in range((context + PAGE - 1) // PAGE):
        page = _page_address(args, chunk, page_index)
        first = page_index * PAGE
        most = min(PAGE, context - first)
        vectors = (most + LANES - 1) // LANES
        for at in range(0, PAGE * count, LANES):
            vstore(scores, at, zero)
        tile_fma(query, dim, page + kv_head * head_bytes, PAGE, dim, scores, PAGE, count, vectors)
        for r in range(count):
            num_keys = min(PAGE, start + (flat + r) // group + 1 - first)
            _soften(scores + 4 * PAGE * r, num_keys, scale, state + 8 * r, output + 4 * dim * r,
                    dim)  # fmt: skip
        values = page + (kv_heads + kv_head) * head_bytes
        tile_fma(scores, PAGE, values, dim, most, output, dim, count, dim // LANES)
    _store_tile(args, chunk, kv_head, flat, count, output, state)


@njit
def _scratch_floats(dim):
    return TILE_ROWS * (2 * dim + PAGE + 2) + 2 * dim


def attend_items(args):
    """Attention of all work items; with WRITES_FIRST each item writes its own KV before.

    The address of scratch is taken anew in the loop: numba frees an array after its last use, and
    a bare address is no use. Taken once, every call wrote to freed memory (aborts in malloc).
    """
    num_items, items = load_i64(args, NUM_ITEMS), load_i64(args, ITEMS)
    group = load_i64(args, NUM_HEADS) // load_i64(args, NUM_KV_HEADS)
    scratch = np.empty(_scratch_floats(load_i64(args, HEAD_DIM)), np.float32)
    while True:
        item = fetch_add(args, 1)
        if item >= num_items:
            break
        chunk, kv_head = load_i32(items, 4 * item), load_i32(items, 4 * item + 1)
        first, rows = load_i32(items, 4 * item + 2), load_i32(items, 4 * item + 3)
        if load_i64(args, WRITES_FIRST) != 0:
            _write_rows(args, chunk, kv_head, first, rows, scratch.ctypes.data)
        end = (first + rows) * group
        for flat in range(first * group, end, TILE_ROWS):
            _attend_tile(
                args, chunk, kv_head, flat, min(TILE_ROWS, end - flat), scratch.ctypes.data
            )


def write_items(args):
    """Keys and values of all work items into their pages."""
    num_items, items = load_i64(args, NUM_ITEMS), load_i64(args, ITEMS)
    scratch = np.empty(_scratch_floats(load_i64(args, HEAD_DIM)), np.float32)
    while True:
        item = fetch_add(args, 1)
        if item >= num_items:
            break
        chunk, kv_head = load_i32(items, 4 * item), load_i32(items, 4 * item + 1)
        first, rows = load_i32(items, 4 * item + 2), load_i32(items, 4 * item + 3)
        _write_rows(args, chunk, kv_head, first, rows, scratch.ctypes.data)
