"""Floats as integers of the same order, and exact choice among them digit by digit.

Instead of sorting a row, its k-th best value is found in eight passes, one hexadecimal digit of
the key each. What is chosen follows from counts alone, so it is exact, ties included.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

NUM_DIGITS = tl.constexpr(8)
DIGIT_BITS = tl.constexpr(4)
NUM_BINS = tl.constexpr(16)


@triton.jit
def order_key(value):
    """int64 in [0, 2 ** 32), larger for larger fp32 values, the same for 0 and -0."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return ordered.to(tl.int64) + 2147483648


@triton.jit
def digits_of(key, is_in, prefix, shift):
    """bool [BLOCK, NUM_BINS]: keys that begin with prefix, by their digit at shift."""
    begins = is_in & ((key >> (shift + DIGIT_BITS)) == prefix)
    digit = (key >> shift) & (NUM_BINS - 1)
    return begins[:, None] & (digit[:, None] == tl.arange(0, NUM_BINS)[None, :])


@triton.jit
def sum_above(values, digit):
    """Sum of the values of the digits above `digit`."""
    return tl.sum(tl.where(tl.arange(0, NUM_BINS) > digit, values, 0), 0)
