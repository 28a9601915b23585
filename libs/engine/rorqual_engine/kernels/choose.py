"""One token a row: mask, greedy choice, or top-k, top-p, min-p and the inverse of what they leave.

A C function of one address, that of an int64 argument block; slot 0 counts rows given out, so
several threads share one call. A row's token depends on nothing but that row.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import njit, types

from rorqual_engine.kernels.simd import (
    LANES,
    fetch_add,
    hmax,
    hsum,
    keep_above,
    keep_below,
    keep_bits,
    load_bf16,
    load_f32,
    load_f64,
    load_i64,
    splat,
    store_f32,
    store_i64,
    vadd,
    vexp,
    vload,
    vload_bf16,
    vmax,
    vmul,
    vstore,
    vsub,
)

(
    NEXT, NUM_ROWS, VOCAB, ROWS, HALVES, MASKS, INVERSE, TOP_K, TOP_P, MIN_P, NOISE, TARGET,
) = range(12)  # fmt: skip
NUM_SLOTS = 12

BLOCK = 256
"""Tokens whose maximum and mass are known as such."""
LOWEST = -1.0e38
"""Stands for minus infinity as a running maximum."""
NOTHING = -87.0
"""A token weighs exp of its scaled logit, and nothing from here on."""
BINS_PER_UNIT = 64
NUM_BINS = 4096
"""Scaled logits are sorted into bins of 1/64; the last bin takes the far tail."""
NEAR = 10.0
NEAR_WEIGHT = 4.6e-5
"""exp(-NEAR), rounded up. Cuts mostly keep tokens of at least this weight only; then the others
are not looked at."""


def choose_rows(args):
    """ROWS: addresses of [vocab]; HALVES int64: 1 = a row is bf16, 0 = fp32; MASKS: addresses of
    bit sets, 0 = everything allowed; INVERSE fp32: 1 / temperature, 0 = greedy; TOP_K int64;
    TOP_P, MIN_P, NOISE fp64; TARGET int64: the tokens.
    """
    num_rows, vocab = load_i64(args, NUM_ROWS), load_i64(args, VOCAB)
    num_blocks = (vocab + BLOCK - 1) // BLOCK
    room = np.empty(2 * BLOCK, np.float32)
    peaks, masses = np.empty(num_blocks, np.float32), np.empty(num_blocks, np.float32)
    while True:
        row = fetch_add(args, 1)
        if row >= num_rows:
            break
        source, half = load_i64(load_i64(args, ROWS), row), load_i64(load_i64(args, HALVES), row)
        mask = load_i64(load_i64(args, MASKS), row)
        inverse = load_f32(load_i64(args, INVERSE), row)
        top_k, top_p = load_i64(load_i64(args, TOP_K), row), load_f64(load_i64(args, TOP_P), row)
        min_p, noise = load_f64(load_i64(args, MIN_P), row), load_f64(load_i64(args, NOISE), row)
        peak, block = find_peaks(source, half, mask, vocab, peaks)
        if not inverse > 0:
            token = _first_of(source, half, mask, vocab, block, peak)
        elif top_k <= 0 and top_p >= 1.0 and min_p <= 0.0:
            total = weigh(source, half, mask, vocab, peak, inverse, room, masses)
            token = _walk(source, half, mask, vocab, peak, inverse, room, masses, noise * total)
        else:
            token = _draw_cut(source, half, mask, vocab, peak, inverse, peaks, top_k, top_p, min_p,
                              noise)  # fmt: skip
        store_i64(load_i64(args, TARGET), row, token)


@njit
def load_logit(source, half, token):
    """As fp32, whatever the row is."""
    return load_bf16(source, token) if half != 0 else load_f32(source, token)


@njit
def _load(source, half, mask, at, vocab, last):
    """16 logits from `at` on; forbidden ones, and lanes past the end, are minus infinity.

    last: address of 16 floats, room for the logits of the last, incomplete vector.
    """
    forbidden = splat(types.float32(-np.inf))
    if at + LANES <= vocab:
        values = vload_bf16(source, at) if half != 0 else vload(source, at)
    else:
        for lane in range(min(LANES, vocab - at)):
            store_f32(last, lane, load_logit(source, half, at + lane))
        values = keep_below(vload(last, 0), at, vocab, forbidden)
    if mask != 0:
        values = keep_bits(values, mask, at, forbidden)
    return values


@njit
def find_peaks(source, half, mask, vocab, peaks):
    """Every block's largest logit; returns the largest of all and the first block that has it."""
    last = np.zeros(LANES, np.float32)
    best, best_block = types.float32(LOWEST), 0
    for block in range(len(peaks)):
        start = block * BLOCK
        largest = splat(types.float32(LOWEST))
        for at in range(start, min(start + BLOCK, vocab), LANES):
            largest = vmax(largest, _load(source, half, mask, at, vocab, last.ctypes.data))
        peaks[block] = hmax(largest)
        if peaks[block] > best:
            best, best_block = peaks[block], block
    return best, best_block


@njit
def _first_of(source, half, mask, vocab, block, value):
    """The first token of the block with this logit."""
    last = np.zeros(LANES, np.float32)
    found = np.empty(LANES, np.float32)
    for at in range(block * BLOCK, vocab, LANES):
        vstore(found.ctypes.data, 0, _load(source, half, mask, at, vocab, last.ctypes.data))
        for lane in range(LANES):
            if found[lane] == value:
                return at + lane
    return 0


@njit
def _weigh_block(source, half, mask, vocab, block, peak, inverse, scaled, weights):
    """A block's logits over temperature below their maximum, and their exponentials; returns the
    sum of these. scaled, weights: fp32 [BLOCK], addresses."""
    last = np.zeros(LANES, np.float32)
    top, factor, zero = splat(peak), splat(inverse), splat(types.float32(0.0))
    nothing = splat(types.float32(NOTHING))
    total, start = zero, block * BLOCK
    for at in range(start, min(start + BLOCK, vocab), LANES):
        values = vmul(vsub(_load(source, half, mask, at, vocab, last.ctypes.data), top), factor)
        weight = keep_above(vexp(values), values, nothing, zero)
        vstore(scaled, at - start, values)
        vstore(weights, at - start, weight)
        total = vadd(total, weight)
    return hsum(total)


@njit
def weigh(source, half, mask, vocab, peak, inverse, room, masses):
    """The weight of every block; returns that of all. room: fp32 [2 * BLOCK]"""
    total = 0.0
    for block in range(len(masses)):
        at = room.ctypes.data
        masses[block] = _weigh_block(source, half, mask, vocab, block, peak, inverse, at,
                                     at + 4 * BLOCK)  # fmt: skip
        total += masses[block]
    return total


@njit
def _walk(source, half, mask, vocab, peak, inverse, room, masses, target):
    """The first token at which the mass passes the target, else the last that weighs anything."""
    passed, block, heavy = 0.0, 0, 0
    while block < len(masses) - 1 and passed + masses[block] <= target:
        heavy = block if masses[block] > 0 else heavy
        passed += masses[block]
        block += 1
    if masses[block] == 0:
        block = heavy
    last = 0
    for number in range(block, len(masses)):
        at = room.ctypes.data
        _weigh_block(source, half, mask, vocab, number, peak, inverse, at, at + 4 * BLOCK)
        for lane in range(min(BLOCK, vocab - number * BLOCK)):
            weight = room[BLOCK + lane]
            passed += weight
            if weight > 0:
                last = number * BLOCK + lane
                if passed > target:
                    return last
    return last


@njit
def _draw_cut(source, half, mask, vocab, peak, inverse, peaks, top_k, top_p, min_p, noise):
    """The token that noise names in the cut distribution.

    Order everywhere: by scaled descending, then by token id.
    """
    num_blocks, total = len(peaks), 0.0
    all_scaled = np.empty(num_blocks * BLOCK, np.float32)
    all_weights = np.empty(num_blocks * BLOCK, np.float32)
    for block in range(num_blocks):
        at = 4 * block * BLOCK
        to, weights_to = all_scaled.ctypes.data + at, all_weights.ctypes.data + at
        total += _weigh_block(source, half, mask, vocab, block, peak, inverse, to, weights_to)
    scaled, weights = all_scaled[:vocab], all_weights[:vocab]
    near = _near_tokens(scaled, peaks, peak, inverse)
    near_scaled, near_weights = scaled[near], weights[near]
    if top_k > 0:
        is_enough = top_k < len(near)
    else:
        is_enough = min_p >= NEAR_WEIGHT or top_p * total <= near_weights.sum()
    if is_enough:
        return near[_draw(near_scaled, near_weights, total, top_k, top_p, min_p, noise)]
    return _draw(scaled, weights, total, top_k, top_p, min_p, noise)


@njit
def _near_tokens(scaled, peaks, peak, inverse):
    """Tokens whose scaled logit is above -NEAR, in order of ids."""
    near = np.empty(len(scaled), np.int64)
    n = 0
    for block in range(len(peaks)):
        if (peaks[block] - peak) * inverse <= -NEAR:
            continue
        for token in range(block * BLOCK, min((block + 1) * BLOCK, len(scaled))):
            near[n] = token
            n += scaled[token] > -NEAR
    return near[:n]


@njit
def _draw(scaled, weights, whole, top_k, top_p, min_p, uniform):
    """As choose_token, over a part of the vocabulary that holds everything kept."""
    cut_value, cut_id = _cut(scaled, weights, whole, top_k, top_p)
    total = 0.0
    for i in range(len(scaled)):
        if _is_kept(scaled[i], i, cut_value, cut_id) and weights[i] >= min_p:
            total += weights[i]
    target = uniform * total
    passed = 0.0
    last = 0
    for i in range(len(scaled)):
        if _is_kept(scaled[i], i, cut_value, cut_id) and weights[i] >= min_p and weights[i] > 0:
            passed += weights[i]
            last = i
            if passed > target:
                break
    return last


@njit(inline="always")
def _is_kept(value, token, cut_value, cut_id):
    return value > cut_value or (value == cut_value and token <= cut_id)


@njit
def _cut(scaled, weights, total, top_k, top_p):
    """The last token (its value and id) that top-k and top-p keep."""
    keep_all = (np.float32(-np.inf), len(scaled))
    if top_k <= 0 and top_p >= 1.0:
        return keep_all
    counts = np.zeros(NUM_BINS, np.int64)
    masses = np.zeros(NUM_BINS, np.float64)
    for i in range(len(scaled)):
        if weights[i] > 0:
            b = _bin(scaled[i])
            counts[b] += 1
            masses[b] += weights[i]
    cut_value, cut_id = keep_all
    if 0 < top_k < counts.sum():
        cut_value, cut_id, total = _cut_in_bins(scaled, weights, counts, masses, top_k, np.inf)
    if top_p < 1.0:
        p_value, p_id, _ = _cut_in_bins(scaled, weights, counts, masses, len(scaled), top_p * total)
        if p_value > cut_value or (p_value == cut_value and p_id < cut_id):
            cut_value, cut_id = p_value, p_id
    return cut_value, cut_id


@njit(inline="always")
def _bin(value):
    return min(NUM_BINS - 1, int(-value * BINS_PER_UNIT))


@njit
def _cut_in_bins(scaled, weights, counts, masses, max_count, max_mass):
    """Walks down in order until max_count tokens or max_mass are reached.

    Returns the last token walked over and the mass up to and including it.
    """
    count = 0
    mass = 0.0
    b = 0
    while b < NUM_BINS - 1 and count + counts[b] < max_count and mass + masses[b] < max_mass:
        count += counts[b]
        mass += masses[b]
        b += 1
    tokens = np.empty(counts[b], np.int64)
    n = 0
    for i in range(len(scaled)):
        if weights[i] > 0 and _bin(scaled[i]) == b:
            tokens[n] = i
            n += 1
    value, token = np.float32(-np.inf), len(scaled)
    for j in np.argsort(-scaled[tokens], kind="mergesort"):
        token = tokens[j]
        value = scaled[token]
        count += 1
        mass += weights[token]
        if count >= max_count or mass >= max_mass:
            break
    return value, token, mass
