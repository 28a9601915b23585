"""Log probabilities of rows: of one token, and of the likeliest ones.

A C function of one address, as choose.py's.
"""

# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np
from numba import njit, types

from rorqual_engine.kernels.choose import BLOCK, find_peaks, load_logit, weigh
from rorqual_engine.kernels.simd import fetch_add, load_i64, store_f64, store_i64

(
    NEXT, NUM_ROWS, VOCAB, ROWS, HALF, CHOSEN, ENDS, LOGPROBS, TOP_IDS, TOP_LOGPROBS,
) = range(10)  # fmt: skip
NUM_SLOTS = 10


def score_rows(args):
    """ROWS: addresses of [vocab]; HALF: 1 = all are bf16, 0 = fp32; CHOSEN int64: a token a row;
    ENDS int64: a row's likeliest tokens are those up to here, from the end of the row before on.
    LOGPROBS fp64 [rows]; TOP_IDS int64, TOP_LOGPROBS fp64: likeliest first, the lower id first
    among equals.
    """
    num_rows, vocab = load_i64(args, NUM_ROWS), load_i64(args, VOCAB)
    half = load_i64(args, HALF)
    num_blocks = (vocab + BLOCK - 1) // BLOCK
    room = np.empty(2 * BLOCK, np.float32)
    peaks, masses = np.empty(num_blocks, np.float32), np.empty(num_blocks, np.float32)
    while True:
        row = fetch_add(args, 1)
        if row >= num_rows:
            break
        source, ends = load_i64(load_i64(args, ROWS), row), load_i64(args, ENDS)
        peak, _ = find_peaks(source, half, 0, vocab, peaks)
        total = weigh(source, half, 0, vocab, peak, types.float32(1.0), room, masses)
        log_total = peak + math.log(total)
        chosen = load_logit(source, half, load_i64(load_i64(args, CHOSEN), row))
        store_f64(load_i64(args, LOGPROBS), row, chosen - log_total)
        first = load_i64(ends, row - 1) if row > 0 else 0
        ids, values = _likeliest(source, half, vocab, peaks, load_i64(ends, row) - first)
        for place in range(len(ids)):
            store_i64(load_i64(args, TOP_IDS), first + place, ids[place])
            store_f64(load_i64(args, TOP_LOGPROBS), first + place, values[place] - log_total)


@njit
def _likeliest(source, half, vocab, peaks, count):
    """The tokens with the largest logits, in order, and these; count <= vocab."""
    ids, values = np.zeros(count, np.int64), np.full(count, -np.inf)
    if count == 0:
        return ids, values
    num = 0
    for block in range(len(peaks)):
        if num == count and peaks[block] <= values[count - 1]:
            continue
        for token in range(block * BLOCK, min((block + 1) * BLOCK, vocab)):
            value = load_logit(source, half, token)
            if num == count and value <= values[count - 1]:
                continue
            place = num if num < count else count - 1
            while place > 0 and values[place - 1] < value:
                ids[place], values[place] = ids[place - 1], values[place - 1]
                place -= 1
            ids[place], values[place] = token, value
            num = min(num + 1, count)
    return ids, values
