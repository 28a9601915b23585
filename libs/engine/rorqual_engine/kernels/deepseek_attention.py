"""Attention over a window, chosen entries and a sink; preparation of queries and keys.

One KV head whose bf16 vectors are keys and values at once. Per query row everything happens in
one order: window keys by position, then entries by number; sums over lanes by one tree. No step
looks at other rows' queries. Kernels are C functions of the address of an argument block of 8-byte
slots, int64 but for epsilons, which are fp64.
"""

# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np
from numba import njit, types

from rorqual_engine.kernels.deepseek_streams import norm_into
from rorqual_engine.kernels.simd import (
    LANES,
    fetch_add,
    fma,
    hmax,
    hsum,
    keep_below,
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    splat,
    store_f32,
    store_sums,
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

LOWEST = -1.0e30
(
    NEXT, ROWS, STEP, Q, HEADS, DIM, PAIRS, COS, SIN, KV, POSITIONS, ROW_CHUNK, CHUNK_STARTS,
    CHUNK_FIRSTS, FLOORS, RING_BASE, RING_SLOT_BYTES, RING_SLOTS, RING, WINDOW, ENTRY_BASE,
    PAGE_BYTES, PAGES, PAGE_STARTS, RATIO, PER_PAGE, SELECTION, NUM_SELECTED, MAX_ENTRIES, SINKS,
    OUT, GROUPS, HAS_Q_NORM, EPS, WRITES_RING, WRITE_ONLY, CHUNK_ENDS, RING_ROW_BYTES, REACHES,
) = range(39)  # fmt: skip
NUM_ATTEND_SLOTS = 39
(
    P_NEXT, P_ROWS, P_STEP, P_SOURCE, P_STRIDE, P_Q_RANK, P_DIM, P_PAIRS, P_COS, P_SIN,
    P_POSITIONS, P_Q_NORM, P_KV_NORM, P_Q_LATENT, P_KV, P_EPS,
) = range(16)  # fmt: skip
NUM_PREPARE_SLOTS = 16


@njit
def turn(values, dim, pairs, cos, sin, direction):
    """RoPE of fp32 values [dim], in place, on the last 2 * pairs of them."""
    base = dim - 2 * pairs
    for i in range(pairs):
        c, s = load_f32(cos, i), load_f32(sin, i) * types.float32(direction)
        even, odd = load_f32(values, base + 2 * i), load_f32(values, base + 2 * i + 1)
        store_f32(values, base + 2 * i, even * c - odd * s)
        store_f32(values, base + 2 * i + 1, odd * c + even * s)


@njit
def round_row(source, target, width):
    """fp32 to bf16."""
    for at in range(0, width, LANES):
        vstore_bf16(target, at, vload(source, at))


@njit
def widen_row(source, target, width):
    """bf16 to fp32."""
    for at in range(0, width, LANES):
        vstore(target, at, vload_bf16(source, at))


def prepare_rows(args):
    """SOURCE bf16 [T, q_rank + dim], rows STRIDE apart -> Q_LATENT bf16 [T, q_rank], normed, and
    KV bf16 [T, dim], normed and rotated by the row's position."""
    q_rank, dim, pairs = load_i64(args, P_Q_RANK), load_i64(args, P_DIM), load_i64(args, P_PAIRS)
    eps = load_f64(args, P_EPS)
    scratch = np.empty(dim, np.float32)
    while True:
        first = fetch_add(args, load_i64(args, P_STEP))
        if first >= load_i64(args, P_ROWS):
            break
        for row in range(first, min(first + load_i64(args, P_STEP), load_i64(args, P_ROWS))):
            source = load_i64(args, P_SOURCE) + 2 * load_i64(args, P_STRIDE) * row
            target = load_i64(args, P_Q_LATENT) + 2 * q_rank * row
            norm_into(source, load_i64(args, P_Q_NORM), q_rank, eps, target)
            kv = load_i64(args, P_KV) + 2 * dim * row
            norm_into(source + 2 * q_rank, load_i64(args, P_KV_NORM), dim, eps, kv)
            widen_row(kv, scratch.ctypes.data, dim)
            angle = 4 * pairs * load_i64(load_i64(args, P_POSITIONS), row)
            cos, sin = load_i64(args, P_COS) + angle, load_i64(args, P_SIN) + angle
            turn(scratch.ctypes.data, dim, pairs, cos, sin, 1.0)
            round_row(scratch.ctypes.data, kv, dim)


@njit
def _load_query(args, row, query, temp):
    """Normed, rotated queries of all heads, fp32, rounded to bf16 after each step."""
    heads, dim, pairs = load_i64(args, HEADS), load_i64(args, DIM), load_i64(args, PAIRS)
    angle = 4 * pairs * load_i64(load_i64(args, POSITIONS), row)
    cos, sin = load_i64(args, COS) + angle, load_i64(args, SIN) + angle
    for head in range(heads):
        source = load_i64(args, Q) + 2 * dim * (row * heads + head)
        if load_i64(args, HAS_Q_NORM) != 0:
            norm_into(source, 0, dim, load_f64(args, EPS), temp)
            source = temp
        target = query + 4 * dim * head
        widen_row(source, target, dim)
        turn(target, dim, pairs, cos, sin, 1.0)
        round_row(target, temp, dim)
        widen_row(temp, target, dim)


@njit
def _copy_row(source, target, dim):
    for at in range(0, dim, LANES):
        vstore_bf16(target, at, vload_bf16(source, at))


@njit
def _window_keys(args, row, chunk, first, count, keys):
    """Address of the window's keys, contiguous: in KV itself where they all lie there."""
    dim = load_i64(args, DIM)
    start = load_i64(load_i64(args, CHUNK_STARTS), chunk)
    here = load_i64(args, KV) + 2 * dim * (load_i64(load_i64(args, CHUNK_FIRSTS), chunk) - start)
    if first >= start:
        return here + 2 * dim * first
    slot = load_i64(load_i64(args, RING_SLOTS), chunk)
    base = load_i64(args, RING_BASE) + slot * load_i64(args, RING_SLOT_BYTES)
    ring, row_bytes = load_i64(args, RING), load_i64(args, RING_ROW_BYTES)
    for i in range(count):
        position = first + i
        source = here + 2 * dim * position
        if position < start:
            source = base + row_bytes * (position % ring)
        _copy_row(source, keys + 2 * dim * i, dim)
    return keys


@njit
def _entry_keys(args, row, chunk, keys):
    """Gathers the row's entries; returns how many."""
    ratio = load_i64(args, RATIO)
    if ratio == 0:
        return 0
    dim, per_page = load_i64(args, DIM), load_i64(args, PER_PAGE)
    selection = load_i64(args, SELECTION)
    limit = load_i64(args, NUM_SELECTED)
    if selection == 0:
        limit = (load_i64(load_i64(args, POSITIONS), row) + 1) // ratio
    pages = load_i64(args, PAGES) + 4 * load_i32(load_i64(args, PAGE_STARTS), chunk)
    for i in range(limit):
        number = i
        if selection != 0:
            number = load_i32(selection, row * limit + i)
            if number < 0:
                return i
        page = load_i32(pages, number // per_page)
        source = load_i64(args, ENTRY_BASE) + page * load_i64(args, PAGE_BYTES)
        _copy_row(source + 2 * dim * (number % per_page), keys + 2 * dim * i, dim)
    return limit


@njit
def _scores(query, keys, count, heads, dim, scores, stride, first):
    """scores[h, first + i] = query[h] . keys[i], four heads at a time."""
    zero = splat(types.float32(0.0))
    for i in range(count):
        key = keys + 2 * dim * i
        for head in range(0, heads, 4):
            base = head * dim
            a, b, c, d = zero, zero, zero, zero
            for at in range(0, dim, LANES):
                value = vload_bf16(key, at)
                a = fma(vload(query, base + at), value, a)
                b = fma(vload(query, base + dim + at), value, b)
                c = fma(vload(query, base + 2 * dim + at), value, c)
                d = fma(vload(query, base + 3 * dim + at), value, d)
            store_sums(scores, head * stride + first + i, stride, a, b, c, d)


@njit
def _soften(scores, count, stride, scale, sink):
    """Scores of one head become weights, all but divided by the sum, which is returned."""
    factor, lowest = splat(scale), splat(types.float32(LOWEST))
    peak = splat(sink)
    for at in range(0, stride, LANES):
        scaled = keep_below(vmul(vload(scores, at), factor), at, count, lowest)
        vstore(scores, at, scaled)
        peak = vmax(peak, scaled)
    shift, zero = splat(hmax(peak)), splat(types.float32(0.0))
    total = zero
    for at in range(0, stride, LANES):
        weight = keep_below(vexp(vsub(vload(scores, at), shift)), at, count, zero)
        vstore(scores, at, weight)
        total = vadd(total, weight)
    return hsum(total) + hmax(vexp(vsub(splat(sink), shift)))


@njit
def _weigh(scores, stride, keys, count, output, heads, dim):
    """output[h] += sum over i of scores[h, i] * keys[i]."""
    if count == 0:
        return
    for head in range(0, heads, TILE_ROWS):
        tile_fma(scores + 4 * stride * head, stride, keys, dim, count, output + 4 * dim * head,
                 dim, min(TILE_ROWS, heads - head), dim // LANES)  # fmt: skip


@njit
def _attend_row(args, row, query, keys, scores, output, temp):
    heads, dim, pairs = load_i64(args, HEADS), load_i64(args, DIM), load_i64(args, PAIRS)
    chunk = load_i64(load_i64(args, ROW_CHUNK), row)
    position = load_i64(load_i64(args, POSITIONS), row)
    window, last = load_i64(args, WINDOW), load_i64(load_i64(args, REACHES), row)
    first = max(max(0, last - window + 1), load_i64(load_i64(args, FLOORS), chunk))
    count = last - first + 1
    _load_query(args, row, query, temp)
    near = _window_keys(args, row, chunk, first, count, keys)
    far = keys + 2 * dim * window
    num_far = _entry_keys(args, row, chunk, far)
    stride = (count + num_far + LANES - 1) // LANES * LANES
    for part in range(2):  # one call site each: they are inlined, and compiling them takes seconds
        part_keys, num, before = (near, count, 0) if part == 0 else (far, num_far, count)
        _scores(query, part_keys, num, heads, dim, scores, stride, before)
    zero = splat(types.float32(0.0))
    for at in range(0, heads * dim, LANES):
        vstore(output, at, zero)
    scale = types.float32(1.0 / math.sqrt(dim))
    for head in range(heads):
        sink = load_f32(load_i64(args, SINKS), head)
        total = _soften(scores + 4 * stride * head, count + num_far, stride, scale, sink)
        store_f32(temp, head, total)
    for part in range(2):
        part_keys, num, before = (near, count, 0) if part == 0 else (far, num_far, count)
        _weigh(scores + 4 * before, stride, part_keys, num, output, heads, dim)
    _store_output(args, row, position, output, temp, heads, dim, pairs)


@njit
def _store_output(args, row, position, output, totals, heads, dim, pairs):
    """Divides, rotates back and writes: OUT is [groups, T, heads / groups * dim]."""
    groups = load_i64(args, GROUPS)
    per_group = heads // groups
    angle = 4 * pairs * position
    cos, sin = load_i64(args, COS) + angle, load_i64(args, SIN) + angle
    for head in range(heads):
        values = output + 4 * dim * head
        total = splat(load_f32(totals, head))
        place = (head // per_group * load_i64(args, ROWS) + row) * per_group + head % per_group
        target = load_i64(args, OUT) + 2 * dim * place
        for at in range(0, dim, LANES):
            vstore_bf16(target, at, vdiv(vload(values, at), total))
        widen_row(target, values, dim)
        turn(values, dim, pairs, cos, sin, -1.0)
        round_row(values, target, dim)


@njit
def _keep_row(args, row):
    """Puts the row's KV into the ring, unless a later row of the chunk takes its place."""
    dim, ring = load_i64(args, DIM), load_i64(args, RING)
    chunk = load_i64(load_i64(args, ROW_CHUNK), row)
    position = load_i64(load_i64(args, POSITIONS), row)
    if position + ring < load_i64(load_i64(args, CHUNK_ENDS), chunk):
        return
    slot = load_i64(load_i64(args, RING_SLOTS), chunk)
    base = load_i64(args, RING_BASE) + slot * load_i64(args, RING_SLOT_BYTES)
    target = base + load_i64(args, RING_ROW_BYTES) * (position % ring)
    _copy_row(load_i64(args, KV) + 2 * dim * row, target, dim)


def attend_rows(args):
    """OUT: attention of all rows, each over the WINDOW keys up to the position that it REACHES: its
    own, or the last of a block whose rows see each other. WRITES_RING: each row keeps its KV at
    once, which is right when no chunk is longer than half the ring; WRITE_ONLY: nothing else
    happens."""
    heads, dim = load_i64(args, HEADS), load_i64(args, DIM)
    room = load_i64(args, WINDOW) + load_i64(args, MAX_ENTRIES) + LANES
    query = np.empty(heads * dim, np.float32)
    keys = np.empty(room * dim, np.int16)
    scores = np.empty(room * heads, np.float32)
    output = np.empty(heads * dim, np.float32)
    temp = np.empty(max(dim, heads), np.float32)
    while True:
        first = fetch_add(args, load_i64(args, STEP))
        if first >= load_i64(args, ROWS):
            break
        for row in range(first, min(first + load_i64(args, STEP), load_i64(args, ROWS))):
            if load_i64(args, WRITE_ONLY) == 0:
                _attend_row(args, row, query.ctypes.data, keys.ctypes.data, scores.ctypes.data,
                            output.ctypes.data, temp.ctypes.data)  # fmt: skip
            if load_i64(args, WRITES_RING) != 0:
                _keep_row(args, row)
