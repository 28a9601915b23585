"""Pooling of raw rows into entries, and entries into pages.

Raw rows are kv then gates. Those of the pass lie as bf16, those of earlier passes in a ring of the
slot as fp32, with the bias of their place in the window added. Kernels are C functions of the
address of an argument block of 8-byte slots, int64 but for epsilons, which are fp64.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import njit, types

from rorqual_engine.kernels.deepseek_attention import round_row, turn, widen_row
from rorqual_engine.kernels.deepseek_streams import norm_into
from rorqual_engine.kernels.simd import (
    LANES,
    copy_bf16,
    fetch_add,
    fma,
    load_f64,
    load_i32,
    load_i64,
    splat,
    vadd,
    vdiv,
    vexp,
    vload,
    vload_bf16,
    vmax,
    vstore,
    vstore_bf16,
    vsub,
)

(
    NEXT, NUM, NUMBERS, ENTRY_CHUNK, RATIO, OVERLAPS, DIM, RAW, RAW_STRIDE, BIAS, STARTS, FIRSTS,
    SLOTS, RING_BASE, RING_SLOT_BYTES, RING, NORM, TARGET, EPS,
) = range(19)  # fmt: skip
NUM_POOL_SLOTS = 19
(
    K_NEXT, K_ROWS, K_WIDTH, K_RATIO, K_RAW, K_RAW_STRIDE, K_BIAS, K_POSITIONS, K_ROW_CHUNK,
    K_ENDS, K_SLOTS, K_RING_BASE, K_RING_SLOT_BYTES, K_RING,
) = range(14)  # fmt: skip
NUM_KEEP_SLOTS = 14
(
    E_NEXT, E_NUM, E_NUMBERS, E_ENTRY_CHUNK, E_RATIO, E_PER_PAGE, E_DIM, E_KEY_DIM, E_PAIRS, E_COS,
    E_SIN, E_LATENT, E_KEYS, E_KEY_NORM, E_PAGES, E_PAGE_STARTS, E_ENTRY_BASE, E_KEY_BASE,
    E_PAGE_BYTES, E_EPS,
) = range(20)  # fmt: skip
NUM_ENTRY_SLOTS = 20


@njit
def _load_raw(args, chunk, position, second, kv, gates):
    """One slot of a window as fp32: kv and gates [DIM]; second: its second half where they
    overlap."""
    ratio, dim = load_i64(args, RATIO), load_i64(args, DIM)
    overlaps = load_i64(args, OVERLAPS)
    width = 2 * dim if overlaps != 0 else dim
    column = dim if overlaps != 0 and second else 0
    start = load_i64(load_i64(args, STARTS), chunk)
    if position < start:
        slot = load_i64(load_i64(args, SLOTS), chunk)
        row = load_i64(args, RING_BASE) + slot * load_i64(args, RING_SLOT_BYTES)
        row += 8 * width * (position % load_i64(args, RING))
        for at in range(0, dim, LANES):
            vstore(kv, at, vload(row, column + at))
            vstore(gates, at, vload(row, width + column + at))
        return
    index = load_i64(load_i64(args, FIRSTS), chunk) + position - start
    row = load_i64(args, RAW) + 2 * load_i64(args, RAW_STRIDE) * index
    bias = load_i64(args, BIAS)
    for at in range(0, dim, LANES):
        vstore(kv, at, vload_bf16(row, column + at))
        gate = vload_bf16(row, width + column + at)
        if bias != 0:
            gate = vadd(gate, vload(bias + 4 * width * (position % ratio), column + at))
        vstore(gates, at, gate)


@njit
def _pool_entry(args, entry, kv, gates):
    """TARGET[entry] = norm of the window's kv weighted by softmax of its gates, per channel."""
    ratio, dim = load_i64(args, RATIO), load_i64(args, DIM)
    chunk = load_i64(load_i64(args, ENTRY_CHUNK), entry)
    number = load_i64(load_i64(args, NUMBERS), entry)
    begin, num = number * ratio, ratio
    if load_i64(args, OVERLAPS) != 0 and number > 0:
        begin, num = begin - ratio, 2 * ratio
    for i in range(num):
        is_second = begin + i >= number * ratio
        _load_raw(args, chunk, begin + i, is_second, kv + 4 * dim * i, gates + 4 * dim * i)
    target = load_i64(args, TARGET) + 2 * dim * entry
    for at in range(0, dim, LANES):
        peak = vload(gates, at)
        for i in range(1, num):
            peak = vmax(peak, vload(gates, i * dim + at))
        total, pooled = splat(types.float32(0.0)), splat(types.float32(0.0))
        for i in range(num):
            weight = vexp(vsub(vload(gates, i * dim + at), peak))
            total = vadd(total, weight)
            pooled = fma(weight, vload(kv, i * dim + at), pooled)
        vstore_bf16(target, at, vdiv(pooled, total))
    norm_into(target, load_i64(args, NORM), dim, load_f64(args, EPS), target)


def pool_entries(args):
    """TARGET bf16 [NUM, DIM]: the entries NUMBERS of the chunks ENTRY_CHUNK, normed."""
    room = 2 * load_i64(args, RATIO) * load_i64(args, DIM)
    kv = np.empty(room, np.float32)
    gates = np.empty(room, np.float32)
    while True:
        entry = fetch_add(args, 1)
        if entry >= load_i64(args, NUM):
            break
        _pool_entry(args, entry, kv.ctypes.data, gates.ctypes.data)


def keep_raw(args):
    """The last rows of every chunk go to the rings. RAW: kv then gates, bf16 [T, 2 * WIDTH]."""
    width, ratio, ring = load_i64(args, K_WIDTH), load_i64(args, K_RATIO), load_i64(args, K_RING)
    bias = load_i64(args, K_BIAS)
    while True:
        row = fetch_add(args, 1)
        if row >= load_i64(args, K_ROWS):
            break
        chunk = load_i64(load_i64(args, K_ROW_CHUNK), row)
        position = load_i64(load_i64(args, K_POSITIONS), row)
        if position + ring < load_i64(load_i64(args, K_ENDS), chunk):
            continue
        source = load_i64(args, K_RAW) + 2 * load_i64(args, K_RAW_STRIDE) * row
        slot = load_i64(load_i64(args, K_SLOTS), chunk)
        target = load_i64(args, K_RING_BASE) + slot * load_i64(args, K_RING_SLOT_BYTES)
        target += 8 * width * (position % ring)
        for at in range(0, width, LANES):
            vstore(target, at, vload_bf16(source, at))
            gate = vload_bf16(source, width + at)
            if bias != 0:
                gate = vadd(gate, vload(bias + 4 * width * (position % ratio), at))
            vstore(target, width + at, gate)


@njit
def _write_entry(args, entry, temp, packed):
    ratio, per_page = load_i64(args, E_RATIO), load_i64(args, E_PER_PAGE)
    dim, key_dim, pairs = load_i64(args, E_DIM), load_i64(args, E_KEY_DIM), load_i64(args, E_PAIRS)
    chunk = load_i64(load_i64(args, E_ENTRY_CHUNK), entry)
    number = load_i64(load_i64(args, E_NUMBERS), entry)
    pages = load_i64(args, E_PAGES) + 4 * load_i32(load_i64(args, E_PAGE_STARTS), chunk)
    page = load_i32(pages, number // per_page) * load_i64(args, E_PAGE_BYTES)
    angle = 4 * pairs * number * ratio
    cos, sin = load_i64(args, E_COS) + angle, load_i64(args, E_SIN) + angle
    widen_row(load_i64(args, E_LATENT) + 2 * dim * entry, temp, dim)
    turn(temp, dim, pairs, cos, sin, 1.0)
    slot = number % per_page
    round_row(temp, load_i64(args, E_ENTRY_BASE) + page + 2 * dim * slot, dim)
    if load_i64(args, E_KEYS) == 0:
        return
    source = load_i64(args, E_KEYS) + 2 * key_dim * entry
    if load_i64(args, E_KEY_NORM) != 0:
        norm_into(source, load_i64(args, E_KEY_NORM), key_dim, load_f64(args, E_EPS), packed)
        source = packed
    widen_row(source, temp, key_dim)
    turn(temp, key_dim, pairs, cos, sin, 1.0)
    round_row(temp, packed, key_dim)
    target = load_i64(args, E_KEY_BASE) + page
    for i in range(key_dim):
        copy_bf16(target, i * per_page + slot, packed, i)


def write_entries(args):
    """Rotates LATENT bf16 [NUM, DIM] and KEYS bf16 [NUM, KEY_DIM], normed first where KEY_NORM is
    given, and puts them into their pages; keys lie [KEY_DIM, entries of a page] there."""
    room = max(load_i64(args, E_DIM), load_i64(args, E_KEY_DIM))
    temp = np.empty(room, np.float32)
    packed = np.empty(room, np.int16)
    while True:
        entry = fetch_add(args, 1)
        if entry >= load_i64(args, E_NUM):
            break
        _write_entry(args, entry, temp.ctypes.data, packed.ctypes.data)
