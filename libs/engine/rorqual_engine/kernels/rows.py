"""Row-wise steps of a layer: residual add with RMSNorm, and the gated activation.

Each kernel is a C function of one address: that of an int64 argument block, whose slots are
named below. Slot 0 counts rows given out, so several threads can share one call.
"""

# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np
from numba import njit, types

from rorqual_engine.kernels.simd import (
    LANES,
    fetch_add,
    fma,
    hsum,
    load_i64,
    round_bf16,
    splat,
    vadd,
    vdiv,
    vexp,
    vload_bf16,
    vmul,
    vstore_bf16,
    vsub,
)

NEXT, NUM_ROWS, STEP, WIDTH, SOURCE, DELTA, WEIGHT, TARGET, EPS_BITS = range(9)
NUM_SLOTS = 9


@njit
def _norm_row(hidden, delta, weight, target, width, eps):
    """hidden += delta (when there is one); target = round(hidden / rms) * weight."""
    squares = splat(types.float32(0.0))
    for at in range(0, width, LANES):
        value = vload_bf16(hidden, at)
        if delta != 0:
            value = round_bf16(vadd(value, vload_bf16(delta, at)))
            vstore_bf16(hidden, at, value)
        squares = fma(value, value, squares)
    mean = hsum(squares) / types.float32(width)
    scale = splat(types.float32(1.0) / types.float32(math.sqrt(mean + eps)))
    for at in range(0, width, LANES):
        scaled = round_bf16(vmul(vload_bf16(hidden, at), scale))
        vstore_bf16(target, at, vmul(vload_bf16(weight, at), scaled))


def add_norm_rows(args):
    """SOURCE: hidden [rows, width]; DELTA: the same or 0; WEIGHT [width]; TARGET [rows, width]."""
    num_rows, step, width = load_i64(args, NUM_ROWS), load_i64(args, STEP), load_i64(args, WIDTH)
    hidden, delta = load_i64(args, SOURCE), load_i64(args, DELTA)
    weight, target = load_i64(args, WEIGHT), load_i64(args, TARGET)
    eps = np.float32(load_i64(args, EPS_BITS) * 2.0**-60)
    row_bytes = 2 * width
    while True:
        first = fetch_add(args, step)
        if first >= num_rows:
            break
        for row in range(first, min(first + step, num_rows)):
            row_delta = delta + row * row_bytes if delta != 0 else 0
            _norm_row(hidden + row * row_bytes, row_delta, weight, target + row * row_bytes,
                      width, eps)  # fmt: skip


@njit
def _gate_row(source, target, width):
    one, zero = splat(types.float32(1.0)), splat(types.float32(0.0))
    for at in range(0, width, LANES):
        gate = vload_bf16(source, at)
        silu = round_bf16(vdiv(gate, vadd(one, vexp(vsub(zero, gate)))))
        vstore_bf16(target, at, vmul(silu, vload_bf16(source, width + at)))


def gate_rows(args):
    """SOURCE: gate and up [rows, 2 * width]; TARGET: silu(gate) * up [rows, width]."""
    num_rows, step, width = load_i64(args, NUM_ROWS), load_i64(args, STEP), load_i64(args, WIDTH)
    source, target = load_i64(args, SOURCE), load_i64(args, TARGET)
    while True:
        first = fetch_add(args, step)
        if first >= num_rows:
            break
        for row in range(first, min(first + step, num_rows)):
            _gate_row(source + row * 4 * width, target + row * 2 * width, width)
