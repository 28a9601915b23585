"""Routing and experts of a mixture layer; every row's arithmetic is its own.

Weights lie as bf16 [in, out], so that a product is rows of scalars against vectors of outputs.
Kernels are C functions of the address of an int64 argument block, as in rows.py.
"""

# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np
from numba import njit, types

from rorqual_engine.kernels.simd import (
    LANES,
    fetch_add,
    load_f32,
    load_i32,
    load_i64,
    round_bf16,
    splat,
    store_f32,
    store_i32,
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

(
    NEXT, NUM_ITEMS, ITEMS, ORDER, X, HIDDEN, INNER, NUM_SLOTS_A_ROW, GATE_UP, DOWN, WEIGHTS,
    PARTS, CLAMP_BITS,
) = range(13)  # fmt: skip
NUM_EXPERT_SLOTS = 13
R_NEXT, R_ROWS, R_X, R_HIDDEN, R_NUM, R_TOP_K, R_GATE, R_BIAS, R_IMAGE_BIAS, R_IS_IMAGE, \
    R_EXPERTS, R_WEIGHTS, R_SCALE_BITS = range(13)  # fmt: skip
NUM_ROUTER_SLOTS = 13
C_NEXT, C_ROWS, C_STEP, C_HIDDEN, C_SLOTS, C_PARTS, C_TARGET = range(7)
NUM_COMBINE_SLOTS = 7
FIXED = 2.0**40
"""Floats travel in the argument block as whole multiples of 1 / FIXED."""
LOWEST = -3.0e38


@njit
def _score(logit):
    """sqrt(softplus(logit))"""
    wide = types.float64(logit)
    soft = wide if wide > 20.0 else math.log1p(math.exp(wide))
    return types.float32(math.sqrt(soft))


@njit
def _route_row(args, row, x, logits, scores, zero):
    hidden, num, top_k = load_i64(args, R_HIDDEN), load_i64(args, R_NUM), load_i64(args, R_TOP_K)
    source = load_i64(args, R_X) + 2 * hidden * row
    for at in range(0, hidden, LANES):
        vstore(x, at, vload_bf16(source, at))
    for at in range(0, num, LANES):
        vstore(logits, at, zero)
    tile_fma(x, hidden, load_i64(args, R_GATE), num, hidden, logits, num, 1, num // LANES)
    bias = load_i64(args, R_BIAS)
    flags = load_i64(args, R_IS_IMAGE)
    if flags != 0 and load_i32(flags, row) != 0:
        bias = load_i64(args, R_IMAGE_BIAS)
    for e in range(num):
        scores[e] = _score(load_f32(logits, e))
        scores[num + e] = scores[e] + load_f32(bias, e)
    experts, weights = load_i64(args, R_EXPERTS), load_i64(args, R_WEIGHTS)
    total = types.float32(0.0)
    for slot in range(top_k):
        best = 0
        for e in range(1, num):
            if scores[num + e] > scores[num + best]:
                best = e
        scores[num + best] = LOWEST
        store_i32(experts, row * top_k + slot, best)
        total += scores[best]
        scores[2 * num + slot] = scores[best]
    scale = types.float32(load_i64(args, R_SCALE_BITS) / FIXED)
    for slot in range(top_k):
        weight = scores[2 * num + slot] / (total + types.float32(1e-20)) * scale
        store_f32(weights, row * (top_k + 1) + slot, weight)
    store_f32(weights, row * (top_k + 1) + top_k, types.float32(1.0))


def route_rows(args):
    """X bf16 [T, D], GATE bf16 [D, E], biases fp32 [E] -> EXPERTS int32 [T, k], the best first and
    ties to the lowest; WEIGHTS fp32 [T, k + 1], the last for the shared expert."""
    hidden, num = load_i64(args, R_HIDDEN), load_i64(args, R_NUM)
    x = np.empty(hidden, np.float32)
    logits = np.empty(num, np.float32)
    scores = np.empty(3 * num, np.float32)
    zero = splat(types.float32(0.0))
    while True:
        row = fetch_add(args, 1)
        if row >= load_i64(args, R_ROWS):
            break
        _route_row(args, row, x.ctypes.data, logits.ctypes.data, scores, zero)


@njit
def _activate(gate_up, inner, width, clamp, low):
    """inner = silu(min(gate, clamp)) * clamp(up), each rounded to bf16."""
    one, zero = splat(types.float32(1.0)), splat(types.float32(0.0))
    for at in range(0, width, LANES):
        gate = round_bf16(vload(gate_up, at))
        gate = vsub(zero, vmax(vsub(zero, gate), low))
        up = vmax(round_bf16(vload(gate_up, width + at)), low)
        up = vsub(zero, vmax(vsub(zero, up), low))
        silu = round_bf16(vdiv(gate, vadd(one, vexp(vsub(zero, gate)))))
        vstore(inner, at, round_bf16(vmul(silu, up)))


@njit
def _run_item(args, expert, first, count, x, gate_up, inner, output, zero):
    hidden, width = load_i64(args, HIDDEN), load_i64(args, INNER)
    order, slots = load_i64(args, ORDER), load_i64(args, NUM_SLOTS_A_ROW)
    clamp = types.float32(load_i64(args, CLAMP_BITS) / FIXED)
    low = splat(-clamp)
    for r in range(count):
        source = load_i64(args, X) + 2 * hidden * (load_i32(order, first + r) // slots)
        for at in range(0, hidden, LANES):
            vstore(x, r * hidden + at, vload_bf16(source, at))
            vstore(output, r * hidden + at, zero)
        for at in range(0, 2 * width, LANES):
            vstore(gate_up, 2 * r * width + at, zero)
    matrix = load_i64(args, GATE_UP) + expert * 4 * hidden * width
    tile_fma(x, hidden, matrix, 2 * width, hidden, gate_up, 2 * width, count, 2 * width // LANES)
    for r in range(count):
        _activate(gate_up + 8 * r * width, inner + 4 * r * width, width, clamp, low)
    matrix = load_i64(args, DOWN) + expert * 2 * hidden * width
    tile_fma(inner, width, matrix, hidden, width, output, hidden, count, hidden // LANES)
    for r in range(count):
        place = load_i32(order, first + r)
        weight = splat(load_f32(load_i64(args, WEIGHTS), place))
        target = load_i64(args, PARTS) + 4 * hidden * place
        for at in range(0, hidden, LANES):
            vstore(target, at, vmul(round_bf16(vload(output, r * hidden + at)), weight))


def run_experts(args):
    """ITEMS int32 [n, 3]: expert, first of ORDER, how many (at most TILE_ROWS). ORDER int32:
    row * slots + slot. PARTS fp32 [T, slots, D]: weighted outputs."""
    hidden, width = load_i64(args, HIDDEN), load_i64(args, INNER)
    x = np.empty(TILE_ROWS * hidden, np.float32)
    gate_up = np.empty(TILE_ROWS * 2 * width, np.float32)
    inner = np.empty(TILE_ROWS * width, np.float32)
    output = np.empty(TILE_ROWS * hidden, np.float32)
    zero = splat(types.float32(0.0))
    while True:
        item = fetch_add(args, 1)
        if item >= load_i64(args, NUM_ITEMS):
            break
        items = load_i64(args, ITEMS)
        _run_item(args, load_i32(items, 3 * item), load_i32(items, 3 * item + 1),
                  load_i32(items, 3 * item + 2), x.ctypes.data, gate_up.ctypes.data,
                  inner.ctypes.data, output.ctypes.data, zero)  # fmt: skip


def combine_parts(args):
    """TARGET bf16 [T, D] = PARTS fp32 [T, slots, D] summed in order of slots."""
    hidden, slots = load_i64(args, C_HIDDEN), load_i64(args, C_SLOTS)
    while True:
        first = fetch_add(args, load_i64(args, C_STEP))
        num_rows = load_i64(args, C_ROWS)
        if first >= num_rows:
            break
        for row in range(first, min(first + load_i64(args, C_STEP), num_rows)):
            source = load_i64(args, C_PARTS) + 4 * hidden * slots * row
            target = load_i64(args, C_TARGET) + 2 * hidden * row
            for at in range(0, hidden, LANES):
                total = vload(source, at)
                for slot in range(1, slots):
                    total = vadd(total, vload(source, slot * hidden + at))
                vstore_bf16(target, at, total)


def group_by_expert(experts, num_experts, has_shared, order, items):
    """experts int32 [T, k] -> order, items as run_experts takes them; returns how many items.

    order: int32 [T * slots]; items: int32 [T * slots, 3]; slots = k + has_shared.
    """
    num_rows, top_k = experts.shape
    slots = top_k + has_shared
    starts = np.zeros(num_experts + 2, np.int64)
    for row in range(num_rows):
        for slot in range(top_k):
            starts[experts[row, slot] + 1] += 1
    starts[num_experts + 1] = num_rows * has_shared
    for e in range(num_experts + 1):
        starts[e + 1] += starts[e]
    places = starts.copy()
    for row in range(num_rows):
        for slot in range(top_k):
            e = experts[row, slot]
            order[places[e]] = row * slots + slot
            places[e] += 1
        if has_shared:
            order[places[num_experts]] = row * slots + top_k
            places[num_experts] += 1
    num_items = 0
    for e in range(num_experts + 1):
        first = starts[e]
        while first < starts[e + 1]:
            count = min(TILE_ROWS, starts[e + 1] - first)
            items[num_items, 0], items[num_items, 1], items[num_items, 2] = e, first, count
            num_items += 1
            first += count
    return num_items
