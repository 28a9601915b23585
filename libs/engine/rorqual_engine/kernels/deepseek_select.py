"""Scores of compressed entries and the choice of the best, ties to the lowest number.

A page's keys lie as bf16 [dim, entries of a page]. Kernels are C functions of the address of an
int64 argument block, as in rows.py; no row sees another.
"""

# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np
from numba import njit, types

from rorqual_engine.kernels.deepseek_attention import round_row, turn, widen_row
from rorqual_engine.kernels.simd import (
    LANES,
    fetch_add,
    fma,
    load_f32,
    load_i32,
    load_i64,
    splat,
    store_i32,
    vload,
    vmax,
    vmul,
    vstore,
)
from rorqual_engine.kernels.tiles import TILE_ROWS, tile_fma

(
    NEXT, ROWS, STEP, Q, HEADS, DIM, PAIRS, COS, SIN, HAS_TURN, WEIGHTS, POSITIONS, ROW_CHUNK,
    KEY_BASE, PAGE_BYTES, PAGES, PAGE_STARTS, RATIO, PER_PAGE, TOP_K, CHOSEN, NUM_CHOSEN, BLOCKS,
    NUM_BLOCKS, BOUNDS, NUM_BOUNDS, BLOCK_ENTRIES, MAX_ENTRIES,
) = range(28)  # fmt: skip
NUM_SELECT_SLOTS = 28
LOWEST = -3.0e38


@njit
def _score_vectors(args, query, weights, page, first, num_vectors, products, scores):
    """scores of 16 * num_vectors entries from the page's entry `first` on; scores: address."""
    heads, dim, per_page = load_i64(args, HEADS), load_i64(args, DIM), load_i64(args, PER_PAGE)
    width = num_vectors * LANES
    zero = splat(types.float32(0.0))
    for at in range(0, heads * width, LANES):
        vstore(products, at, zero)
    for head in range(0, heads, TILE_ROWS):
        tile_fma(query + 4 * dim * head, dim, page + 2 * first, per_page, dim,
                 products + 4 * width * head, width, min(TILE_ROWS, heads - head),
                 num_vectors)  # fmt: skip
    scale = splat(types.float32(1.0 / math.sqrt(dim)))
    for at in range(0, width, LANES):
        total = zero
        for head in range(heads):
            product = vmax(vload(products, head * width + at), zero)
            total = fma(product, splat(weights[head]), total)
        vstore(scores, at, vmul(total, scale))


@njit
def _page(args, chunk, index):
    pages = load_i64(args, PAGES) + 4 * load_i32(load_i64(args, PAGE_STARTS), chunk)
    return load_i64(args, KEY_BASE) + load_i32(pages, index) * load_i64(args, PAGE_BYTES)


@njit
def _score_all(args, chunk, visible, query, weights, products, scores):
    per_page = load_i64(args, PER_PAGE)
    for first in range(0, visible, per_page):
        vectors = (min(per_page, visible - first) + LANES - 1) // LANES
        _score_vectors(args, query, weights, _page(args, chunk, first // per_page), 0, vectors,
                       products, scores + 4 * first)  # fmt: skip


@njit
def _score_bounded(args, row, chunk, visible, query, weights, products, scores, values):
    """Only what lies in the row's candidate blocks; the rest is LOWEST."""
    per_page, size = load_i64(args, PER_PAGE), load_i64(args, BLOCK_ENTRIES)
    values[: visible + LANES] = LOWEST
    bounds = load_i64(args, BOUNDS) + 4 * row * load_i64(args, NUM_BOUNDS)
    held = np.empty(LANES, np.float32)
    done = -1
    for i in range(load_i64(args, NUM_BOUNDS)):
        block = load_i32(bounds, i)
        if block < 0:
            break
        for vector in range(block * size // LANES, (block * size + size - 1) // LANES + 1):
            if vector != done:
                first = vector * LANES
                page = _page(args, chunk, first // per_page)
                _score_vectors(args, query, weights, page, first % per_page, 1, products,
                               held.ctypes.data)  # fmt: skip
                done = vector
            for lane in range(LANES):
                entry = vector * LANES + lane
                if entry // size == block and entry < visible:
                    values[entry] = held[lane]


@njit
def _ordered(values, count, keys):
    """keys int32: in the order of values fp32."""
    for i in range(count):
        bits = types.int32(np.float32(values[i] + np.float32(0.0)).view(np.int32))
        keys[i] = bits ^ ((bits >> 31) & 0x7FFFFFFF)


@njit
def _threshold(keys, count, wanted):
    """The largest key that at least `wanted` of the keys reach."""
    low, high = types.int64(-(2**31)), types.int64(2**31 - 1)
    while low < high:
        middle = (low + high + 1) >> 1
        bound = types.int32(middle)
        reached = 0
        for i in range(count):
            reached += keys[i] >= bound
        if reached >= wanted:
            low = middle
            if reached == wanted:
                break
        else:
            high = middle - 1
    return types.int32(low)


@njit
def _choose(values, keys, count, wanted, target, room):
    """Numbers of the `wanted` best values above LOWEST, ascending; -1 behind them."""
    num = 0
    if count <= wanted:
        for i in range(count):
            if values[i] > LOWEST:
                store_i32(target, num, i)
                num += 1
    else:
        _ordered(values, count, keys)
        bound = _threshold(keys, count, wanted)
        above = 0
        for i in range(count):
            above += keys[i] > bound
        equal = wanted - above
        for i in range(count):
            if keys[i] > bound or (keys[i] == bound and equal > 0):
                if keys[i] == bound:
                    equal -= 1
                if values[i] > LOWEST:
                    store_i32(target, num, i)
                    num += 1
    for i in range(num, room):
        store_i32(target, i, -1)


@njit
def _choose_blocks(args, row, visible, values, peaks, keys):
    size, room = load_i64(args, BLOCK_ENTRIES), load_i64(args, NUM_BLOCKS)
    count = (visible + size - 1) // size
    for block in range(count):
        peak = values[block * size]
        for i in range(block * size + 1, min(visible, block * size + size)):
            peak = max(peak, values[i])
        peaks[block] = peak
    if count > 0:
        peaks[count - 1] = np.float32(np.inf)
    _choose(peaks, keys, count, room, load_i64(args, BLOCKS) + 4 * row * room, room)


@njit
def _load_queries(args, row, query, temp):
    heads, dim, pairs = load_i64(args, HEADS), load_i64(args, DIM), load_i64(args, PAIRS)
    angle = 4 * pairs * load_i64(load_i64(args, POSITIONS), row)
    for head in range(heads):
        target = query + 4 * dim * head
        widen_row(load_i64(args, Q) + 2 * dim * (row * heads + head), target, dim)
        if load_i64(args, HAS_TURN) != 0:
            turn(target, dim, pairs, load_i64(args, COS) + angle, load_i64(args, SIN) + angle, 1.0)
            round_row(target, temp, dim)
            widen_row(temp, target, dim)


def select_rows(args):
    """CHOSEN int32 [T, NUM_CHOSEN]: each row's TOP_K best visible entries, within BOUNDS where
    given. BLOCKS int32 [T, NUM_BLOCKS], where given: its best blocks, the newest among them.
    WEIGHTS: fp32 [T, HEADS]."""
    heads, dim = load_i64(args, HEADS), load_i64(args, DIM)
    room = load_i64(args, MAX_ENTRIES) + load_i64(args, PER_PAGE) + LANES
    query = np.empty(heads * dim, np.float32)
    temp = np.empty(dim, np.float32)
    weights = np.empty(heads, np.float32)
    products = np.empty(heads * load_i64(args, PER_PAGE), np.float32)
    values = np.empty(room, np.float32)
    peaks = np.empty(room, np.float32)
    keys = np.empty(room, np.int32)
    while True:
        first = fetch_add(args, load_i64(args, STEP))
        if first >= load_i64(args, ROWS):
            break
        for row in range(first, min(first + load_i64(args, STEP), load_i64(args, ROWS))):
            chunk = load_i64(load_i64(args, ROW_CHUNK), row)
            visible = (load_i64(load_i64(args, POSITIONS), row) + 1) // load_i64(args, RATIO)
            num_chosen = load_i64(args, NUM_CHOSEN)
            target = load_i64(args, CHOSEN) + 4 * num_chosen * row
            is_all = visible <= load_i64(args, TOP_K) and load_i64(args, BOUNDS) == 0
            if is_all and visible <= load_i64(args, NUM_BLOCKS) * load_i64(args, BLOCK_ENTRIES):
                values[:visible] = 0.0
            else:
                _load_queries(args, row, query.ctypes.data, temp.ctypes.data)
                for head in range(heads):
                    source = load_i64(args, WEIGHTS) + 4 * (heads * row + head)
                    weights[head] = load_f32(source, 0)
                if load_i64(args, BOUNDS) == 0:
                    _score_all(args, chunk, visible, query.ctypes.data, weights,
                               products.ctypes.data, values.ctypes.data)  # fmt: skip
                else:
                    _score_bounded(args, row, chunk, visible, query.ctypes.data, weights,
                                   products.ctypes.data, values.ctypes.data, values)  # fmt: skip
            _choose(values, keys, visible, load_i64(args, TOP_K), target, num_chosen)
            if load_i64(args, BLOCKS) != 0:
                _choose_blocks(args, row, visible, values, peaks, keys)
