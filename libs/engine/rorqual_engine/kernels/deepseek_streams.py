"""Residual streams: how a sublayer reads them and writes them back; norms of rows.

Kernels are C functions of the address of an argument block of 8-byte slots, int64 but for
epsilons, which are fp64. Sums over a row
run in one fixed order, lanes through one tree; no row sees another.
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
    load_f32,
    load_f64,
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
    vswap1,
    vswap2,
    vswap4,
    vswap8,
)

(
    NEXT, ROWS, STEP, STREAMS, NUM_STREAMS, HIDDEN, FN, BASE, SCALE, PRE_IN, NORM, X, PRE, POST,
    COMB, EPS, HC_EPS, ITERATIONS,
) = range(18)  # fmt: skip
NUM_READ_SLOTS = 18
BLOCK_ROWS = 4
"""Rows that share what is read of FN."""
W_NEXT, W_ROWS, W_STEP, W_STREAMS, W_NUM_STREAMS, W_HIDDEN, W_OUTPUT, W_POST, W_COMB, W_TARGET = \
    range(10)  # fmt: skip
NUM_WRITE_SLOTS = 10
N_NEXT, N_ROWS, N_STEP, N_SOURCE, N_STRIDE, N_WIDTH, N_WEIGHT, N_TARGET, N_EPS = range(9)
NUM_NORM_SLOTS = 9


@njit
def _sigmoid(value):
    return types.float32(1.0 / (1.0 + math.exp(-types.float64(value))))


@njit
def _dots(fn, x, width, num_out, logits):
    """logits[r, j] = fn[j] . x[r] for the rows of a block; num_out is even.

    Each sum has accumulators of its own, so that a row's bits don't depend on the rest.
    """
    zero = splat(types.float32(0.0))
    for j in range(0, num_out, 2):
        first, second = j * width, (j + 1) * width
        a, b, c, d, e, f, g, h = zero, zero, zero, zero, zero, zero, zero, zero
        for at in range(0, width, LANES):
            one, other = vload(fn, first + at), vload(fn, second + at)
            value = vload(x, at)
            a, e = fma(one, value, a), fma(other, value, e)
            value = vload(x, width + at)
            b, f = fma(one, value, b), fma(other, value, f)
            value = vload(x, 2 * width + at)
            c, g = fma(one, value, c), fma(other, value, g)
            value = vload(x, 3 * width + at)
            d, h = fma(one, value, d), fma(other, value, h)
        store_sums(logits, j, num_out, a, b, c, d)
        store_sums(logits, j + 1, num_out, e, f, g, h)


@njit
def _balance(comb, n, iterations, eps):
    """Sinkhorn on comb fp32 [n * n], in place."""
    for i in range(n):
        peak = comb[i * n]
        for j in range(1, n):
            peak = max(peak, comb[i * n + j])
        total = types.float32(0.0)
        for j in range(n):
            comb[i * n + j] = types.float32(math.exp(comb[i * n + j] - peak))
            total += comb[i * n + j]
        for j in range(n):
            comb[i * n + j] = comb[i * n + j] / total + eps
    for iteration in range(iterations):
        if iteration > 0:
            for i in range(n):
                total = types.float32(0.0)
                for j in range(n):
                    total += comb[i * n + j]
                inverse = types.float32(1.0) / (total + eps)
                for j in range(n):
                    comb[i * n + j] *= inverse
        for j in range(n):
            total = types.float32(0.0)
            for i in range(n):
                total += comb[i * n + j]
            inverse = types.float32(1.0) / (total + eps)
            for i in range(n):
                comb[i * n + j] *= inverse


@njit
def _balance_four(comb, iterations, eps):
    """As _balance for four streams: the matrix is one vector, comb the address of its 16 values."""
    ones, wide_eps = splat(types.float32(1.0)), splat(types.float32(eps))
    value = vload(comb, 0)
    peak = vmax(value, vswap1(value))
    peak = vmax(peak, vswap2(peak))
    value = vexp(vsub(value, peak))
    total = vadd(value, vswap1(value))
    total = vadd(total, vswap2(total))
    value = vadd(vdiv(value, total), wide_eps)
    for iteration in range(iterations):
        if iteration > 0:
            total = vadd(value, vswap1(value))
            total = vadd(vadd(total, vswap2(total)), wide_eps)
            value = vmul(value, vdiv(ones, total))
        total = vadd(value, vswap4(value))
        total = vadd(vadd(total, vswap8(total)), wide_eps)
        value = vmul(value, vdiv(ones, total))
    vstore(comb, 0, value)


@njit
def _load_streams(args, row, x):
    """x = the row's streams, fp32; returns what norms them."""
    width = load_i64(args, NUM_STREAMS) * load_i64(args, HIDDEN)
    source = load_i64(args, STREAMS) + 2 * width * row
    squares = splat(types.float32(0.0))
    for at in range(0, width, LANES):
        value = vload_bf16(source, at)
        vstore(x, at, value)
        squares = fma(value, value, squares)
    eps = load_f64(args, EPS)
    return types.float32(1.0 / math.sqrt(hsum(squares) / types.float64(width) + eps))


@njit
def _mix_row(args, row, scale, logits, comb):
    """PRE, POST and COMB of one row; logits: fp32 of the streams before their norm, by scale."""
    n = load_i64(args, NUM_STREAMS)
    base, scales = load_i64(args, BASE), load_i64(args, SCALE)
    hc_eps = types.float32(load_f64(args, HC_EPS))
    pre, post = load_i64(args, PRE), load_i64(args, POST)
    for i in range(n):
        value = logits[i] * scale * load_f32(scales, 0) + load_f32(base, i)
        store_f32(pre, row * n + i, _sigmoid(value) + hc_eps)
        value = logits[n + i] * scale * load_f32(scales, 1) + load_f32(base, n + i)
        store_f32(post, row * n + i, types.float32(2.0) * _sigmoid(value))
    for i in range(n * n):
        at = 2 * n + i
        comb[i] = logits[at] * scale * load_f32(scales, 2) + load_f32(base, at)
    if n == 4:
        _balance_four(comb.ctypes.data, load_i64(args, ITERATIONS), hc_eps)
    else:
        _balance(comb, n, load_i64(args, ITERATIONS), hc_eps)
    target = load_i64(args, COMB)
    for i in range(n * n):
        store_f32(target, row * n * n + i, comb[i])


@njit
def _collapse_row(args, row, x, total):
    """X = norm of the streams summed by PRE_IN; x: fp32 copy of the streams."""
    n, hidden = load_i64(args, NUM_STREAMS), load_i64(args, HIDDEN)
    pre = load_i64(args, PRE_IN) + 4 * n * row
    target = load_i64(args, X) + 2 * hidden * row
    squares = splat(types.float32(0.0))
    for at in range(0, hidden, LANES):
        value = vmul(vload(x, at), splat(load_f32(pre, 0)))
        for i in range(1, n):
            value = fma(vload(x, i * hidden + at), splat(load_f32(pre, i)), value)
        vstore_bf16(target, at, value)
        value = vload_bf16(target, at)
        vstore(total, at, value)
        squares = fma(value, value, squares)
    eps = load_f64(args, EPS)
    scale = splat(types.float32(1.0 / math.sqrt(hsum(squares) / types.float64(hidden) + eps)))
    norm = load_i64(args, NORM)
    for at in range(0, hidden, LANES):
        vstore_bf16(target, at, vmul(vmul(vload(total, at), scale), vload(norm, at)))


def read_rows(args):
    """STREAMS bf16 [T, n, D] -> PRE, POST fp32 [T, n], COMB fp32 [T, n, n] and X bf16 [T, D], the
    normed sum of the streams by PRE_IN (which may be PRE)."""
    n, hidden = load_i64(args, NUM_STREAMS), load_i64(args, HIDDEN)
    num_out = (2 + n) * n
    x = np.zeros(BLOCK_ROWS * n * hidden, np.float32)
    total = np.empty(hidden, np.float32)
    logits = np.empty((BLOCK_ROWS, num_out), np.float32)
    comb = np.empty(n * n, np.float32)
    scale = np.empty(BLOCK_ROWS, np.float32)
    while True:
        first = fetch_add(args, load_i64(args, STEP))
        if first >= load_i64(args, ROWS):
            break
        end = min(first + load_i64(args, STEP), load_i64(args, ROWS))
        for block in range(first, end, BLOCK_ROWS):
            count = min(BLOCK_ROWS, end - block)
            for r in range(count):
                scale[r] = _load_streams(args, block + r, x.ctypes.data + 4 * n * hidden * r)
            _dots(load_i64(args, FN), x.ctypes.data, n * hidden, num_out, logits.ctypes.data)
            for r in range(count):
                _mix_row(args, block + r, scale[r], logits[r], comb)
                streams = x.ctypes.data + 4 * n * hidden * r
                _collapse_row(args, block + r, streams, total.ctypes.data)


@njit
def _write_row(args, row):
    n, hidden = load_i64(args, W_NUM_STREAMS), load_i64(args, W_HIDDEN)
    source = load_i64(args, W_STREAMS) + 2 * n * hidden * row
    target = load_i64(args, W_TARGET) + 2 * n * hidden * row
    output = load_i64(args, W_OUTPUT) + 2 * hidden * row
    post, comb = load_i64(args, W_POST) + 4 * n * row, load_i64(args, W_COMB) + 4 * n * n * row
    for at in range(0, hidden, LANES):
        written = vload_bf16(output, at)
        for k in range(n):
            mixed = vmul(vload_bf16(source, at), splat(load_f32(comb, k)))
            for j in range(1, n):
                stream = vload_bf16(source, j * hidden + at)
                mixed = fma(stream, splat(load_f32(comb, j * n + k)), mixed)
            mixed = vadd(mixed, vmul(written, splat(load_f32(post, k))))
            vstore_bf16(target, k * hidden + at, mixed)


def write_rows(args):
    """TARGET bf16 [T, n, D]: stream k = post[k] * OUTPUT + sum over j of comb[j, k] * stream j."""
    while True:
        first = fetch_add(args, load_i64(args, W_STEP))
        if first >= load_i64(args, W_ROWS):
            break
        for row in range(first, min(first + load_i64(args, W_STEP), load_i64(args, W_ROWS))):
            _write_row(args, row)


@njit
def norm_into(source, weight, width, eps, target):
    """target bf16 = RMS norm of source bf16 [width]; weight: fp32 or 0."""
    squares = splat(types.float32(0.0))
    for at in range(0, width, LANES):
        value = vload_bf16(source, at)
        squares = fma(value, value, squares)
    scale = splat(types.float32(1.0 / math.sqrt(hsum(squares) / types.float64(width) + eps)))
    for at in range(0, width, LANES):
        value = vmul(vload_bf16(source, at), scale)
        if weight != 0:
            value = vmul(value, vload(weight, at))
        vstore_bf16(target, at, value)


def norm_rows(args):
    """SOURCE bf16, rows STRIDE apart -> TARGET bf16 [T, WIDTH]; WEIGHT fp32 [WIDTH]."""
    eps = load_f64(args, N_EPS)
    width = load_i64(args, N_WIDTH)
    while True:
        first = fetch_add(args, load_i64(args, N_STEP))
        if first >= load_i64(args, N_ROWS):
            break
        for row in range(first, min(first + load_i64(args, N_STEP), load_i64(args, N_ROWS))):
            norm_into(load_i64(args, N_SOURCE) + 2 * load_i64(args, N_STRIDE) * row,
                      load_i64(args, N_WEIGHT), width, eps,
                      load_i64(args, N_TARGET) + 2 * width * row)  # fmt: skip
