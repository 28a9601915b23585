"""Twin of ref/choice.py: a program a row, in passes over its vocabulary.

Weights are exp of scaled logits in fp64, rounded to fp32; sums are fp64. Cuts are found digit by
digit (keys.py), so no row is sorted.
"""

# mypy: ignore-errors

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from rorqual_engine.kernels.triton.keys import (
    DIGIT_BITS,
    NUM_BINS,
    NUM_DIGITS,
    digits_of,
    order_key,
    sum_above,
)
from rorqual_engine.kernels.triton.places import next_power
from rorqual_engine.ref.choice import RowChoices

_BLOCK = 2048
NO_LIMIT = tl.constexpr(2147483647)


@triton.jit
def _finalise(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def uniform(seed, position):
    """ref/noise.py's number; seed and position int64."""
    mixed_seed = _finalise(seed.to(tl.uint64) + 0x9E3779B97F4A7C15)
    mixed = _finalise(mixed_seed ^ _finalise((position ^ -1).to(tl.uint64)))
    return (mixed >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def allowed_logits(
    logits, bitmask, row, token, vocab, row_stride, mask_stride, HAS_MASK: tl.constexpr
):
    """fp32, -inf where a token is forbidden or there is none."""
    is_token = (token >= 0) & (token < vocab)
    value = tl.load(
        logits + row.to(tl.int64) * row_stride + token, mask=is_token, other=float("-inf")
    )
    if HAS_MASK:
        at = row.to(tl.int64) * mask_stride + token // 32
        word = tl.load(bitmask + at, mask=is_token, other=0)
        value = tl.where(((word >> (token % 32)) & 1) == 1, value, float("-inf"))
    return value


@triton.jit
def scaled_weights(value, peak, inverse):
    """(key of the scaled logit, its weight in fp32): 0 for what is forbidden."""
    scaled = (value - peak) * inverse
    scaled = tl.where(value > float("-inf"), scaled, float("-inf"))
    return order_key(scaled), tl.exp(scaled.to(tl.float64)).to(tl.float32)


@triton.jit
def kept_weights(value, token, peak, inverse, cut_key, cut_token, min_p):
    """fp64 weights after all cuts."""
    key, weight = scaled_weights(value, peak, inverse)
    is_kept = (key > cut_key) | ((key == cut_key) & (token <= cut_token))
    wide = weight.to(tl.float64)
    return tl.where(is_kept & (wide >= min_p), wide, 0.0)


@triton.jit
def _cut(
    logits, bitmask, row, vocab, row_stride, mask_stride, peak, inverse, max_count, max_mass,
    HAS_MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Walks down from the likeliest until max_count tokens or max_mass are reached: (key and
    token of the last one walked over, mass up to it)."""
    offset = tl.arange(0, BLOCK)
    bins = tl.arange(0, NUM_BINS)
    prefix = tl.full((), 0, tl.int64)
    count = tl.full((), 0, tl.int32)
    mass = tl.full((), 0.0, tl.float64)
    num_equal = tl.full((), 0, tl.int32)
    equal_mass = tl.full((), 0.0, tl.float64)
    for step in range(NUM_DIGITS):
        shift = (NUM_DIGITS - 1 - step) * DIGIT_BITS
        counts = tl.zeros((NUM_BINS,), tl.int32)
        masses = tl.zeros((NUM_BINS,), tl.float64)
        for at in range(0, vocab, BLOCK):
            value = allowed_logits(
                logits, bitmask, row, at + offset, vocab, row_stride, mask_stride, HAS_MASK
            )
            key, weight = scaled_weights(value, peak, inverse)
            is_in = digits_of(key, weight > 0, prefix, shift)
            counts += tl.sum(is_in.to(tl.int32), 0)
            masses += tl.sum(tl.where(is_in, weight.to(tl.float64)[:, None], 0.0), 0)
        counts_here = count + tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts
        # Summed from the likeliest on, as a walk would.
        masses_here = mass + tl.cumsum(masses, 0, reverse=True)
        is_enough = (counts > 0) & ((counts_here >= max_count) | (masses_here >= max_mass))
        found = tl.max(tl.where(is_enough, bins, -1), 0)
        least = tl.min(tl.where(counts > 0, bins, NUM_BINS), 0)
        digit = tl.where(found < 0, least, found)
        count += sum_above(counts, digit)
        mass += sum_above(masses, digit)
        num_equal = tl.sum(tl.where(bins == digit, counts, 0), 0)
        equal_mass = tl.sum(tl.where(bins == digit, masses, 0.0), 0)
        prefix = prefix * NUM_BINS + digit
    each = equal_mass / num_equal
    by_mass = tl.ceil((max_mass - mass) / each)
    by_mass = tl.minimum(tl.maximum(by_mass, 1.0), num_equal.to(tl.float64)).to(tl.int32)
    num_kept = tl.minimum(tl.maximum(tl.minimum(max_count - count, by_mass), 1), num_equal)
    passed = tl.full((), 0, tl.int32)
    last = tl.full((), 0, tl.int32)
    for at in range(0, vocab, BLOCK):
        token = at + offset
        value = allowed_logits(
            logits, bitmask, row, token, vocab, row_stride, mask_stride, HAS_MASK
        )
        key, weight = scaled_weights(value, peak, inverse)
        is_equal = ((key == prefix) & (weight > 0)).to(tl.int32)
        rank = passed + tl.cumsum(is_equal, 0)
        is_last = (is_equal > 0) & (rank == num_kept)
        last = tl.maximum(last, tl.max(tl.where(is_last, token, 0), 0))
        passed += tl.sum(is_equal, 0)
    return prefix, last, mass + each * num_kept


@triton.jit
def _cut_rows(
    logits, bitmask, inverse_of, top_k_of, top_p_of, min_p_of, best, peaks, cut_keys, cut_tokens,
    totals, vocab, row_stride, mask_stride, HAS_MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    offset = tl.arange(0, BLOCK)
    peak = tl.full((), float("-inf"), tl.float32)
    first = tl.full((), 0, tl.int32)
    for at in range(0, vocab, BLOCK):
        value = allowed_logits(
            logits, bitmask, row, at + offset, vocab, row_stride, mask_stride, HAS_MASK
        )
        highest = tl.max(value, 0)
        token = tl.min(tl.where(value == highest, at + offset, NO_LIMIT), 0)
        first = tl.where(highest > peak, token, first)
        peak = tl.maximum(peak, highest)
    tl.store(best + row, first)
    tl.store(peaks + row, peak)
    inverse = tl.load(inverse_of + row)
    if inverse > 0:
        num_real = tl.full((), 0, tl.int32)
        total = tl.full((), 0.0, tl.float64)
        for at in range(0, vocab, BLOCK):
            value = allowed_logits(
                logits, bitmask, row, at + offset, vocab, row_stride, mask_stride, HAS_MASK
            )
            _, weight = scaled_weights(value, peak, inverse)
            num_real += tl.sum((weight > 0).to(tl.int32), 0)
            total += tl.sum(weight.to(tl.float64), 0)
        top_k = tl.load(top_k_of + row)
        top_p = tl.load(top_p_of + row)
        min_p = tl.load(min_p_of + row)
        cut_key = tl.full((), -1, tl.int64)
        cut_token = tl.full((), NO_LIMIT, tl.int32)
        if (top_k > 0) & (top_k < num_real):
            no_mass = tl.full((), float("inf"), tl.float64)
            cut_key, cut_token, total = _cut(
                logits, bitmask, row, vocab, row_stride, mask_stride, peak, inverse, top_k,
                no_mass, HAS_MASK, BLOCK,
            )  # fmt: skip
        if top_p < 1:
            no_count = tl.full((), NO_LIMIT, tl.int32)
            p_key, p_token, _ = _cut(
                logits, bitmask, row, vocab, row_stride, mask_stride, peak, inverse, no_count,
                top_p * total, HAS_MASK, BLOCK,
            )  # fmt: skip
            is_stricter = (p_key > cut_key) | ((p_key == cut_key) & (p_token < cut_token))
            cut_key = tl.where(is_stricter, p_key, cut_key)
            cut_token = tl.where(is_stricter, p_token, cut_token)
        kept = tl.full((), 0.0, tl.float64)
        for at in range(0, vocab, BLOCK):
            token = at + offset
            value = allowed_logits(
                logits, bitmask, row, token, vocab, row_stride, mask_stride, HAS_MASK
            )
            weights = kept_weights(value, token, peak, inverse, cut_key, cut_token, min_p)
            kept += tl.sum(weights, 0)
        tl.store(cut_keys + row, cut_key)
        tl.store(cut_tokens + row, cut_token)
        tl.store(totals + row, kept)


@triton.jit
def _draw(
    logits, bitmask, inverse_of, min_p_of, seeds, positions, best, peaks, cut_keys, cut_tokens,
    totals, target, vocab, row_stride, mask_stride, HAS_MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    inverse = tl.load(inverse_of + row)
    chosen = tl.load(best + row)
    if inverse > 0:
        peak, min_p = tl.load(peaks + row), tl.load(min_p_of + row)
        cut_key, cut_token = tl.load(cut_keys + row), tl.load(cut_tokens + row)
        noise = uniform(tl.load(seeds + row), tl.load(positions + row))
        aim = noise * tl.load(totals + row)
        passed = tl.full((), 0.0, tl.float64)
        first = tl.full((), NO_LIMIT, tl.int32)
        last = tl.full((), 0, tl.int32)
        for at in range(0, vocab, BLOCK):
            token = at + tl.arange(0, BLOCK)
            value = allowed_logits(
                logits, bitmask, row, token, vocab, row_stride, mask_stride, HAS_MASK
            )
            weights = kept_weights(value, token, peak, inverse, cut_key, cut_token, min_p)
            here = passed + tl.cumsum(weights, 0)
            is_past = (here > aim) & (weights > 0)
            first = tl.minimum(first, tl.min(tl.where(is_past, token, NO_LIMIT), 0))
            last = tl.maximum(last, tl.max(tl.where(weights > 0, token, 0), 0))
            passed += tl.sum(weights, 0)
        chosen = tl.minimum(first, last)
    tl.store(target + row, chosen.to(tl.int64))


@dataclass(frozen=True)
class RowCuts:
    """What is left of each row's distribution, by row."""

    best: torch.Tensor
    peaks: torch.Tensor
    keys: torch.Tensor
    tokens: torch.Tensor
    totals: torch.Tensor


def cut_rows(logits: torch.Tensor, choices: RowChoices, bitmask: torch.Tensor | None) -> RowCuts:
    """logits: vocab contiguous."""
    num_rows, vocab = logits.shape

    def column(dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(num_rows, dtype=dtype, device=logits.device)

    cuts = RowCuts(
        column(torch.int32), column(torch.float32), column(torch.int64), column(torch.int32),
        column(torch.float64),
    )  # fmt: skip
    if num_rows:
        words = cuts.tokens if bitmask is None else bitmask
        _cut_rows[(num_rows,)](
            logits, words, choices.inverse, choices.top_k, choices.top_p, choices.min_p,
            cuts.best, cuts.peaks, cuts.keys, cuts.tokens, cuts.totals, vocab, logits.stride(0),
            words.stride(0), HAS_MASK=bitmask is not None, BLOCK=block_of(vocab),
        )  # fmt: skip
    return cuts


def draw_rows(
    logits: torch.Tensor, choices: RowChoices, bitmask: torch.Tensor | None, cuts: RowCuts
) -> torch.Tensor:
    num_rows, vocab = logits.shape
    target = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        words = cuts.tokens if bitmask is None else bitmask
        _draw[(num_rows,)](
            logits, words, choices.inverse, choices.min_p, choices.seeds, choices.positions,
            cuts.best, cuts.peaks, cuts.keys, cuts.tokens, cuts.totals, target, vocab,
            logits.stride(0), words.stride(0), HAS_MASK=bitmask is not None, BLOCK=block_of(vocab),
        )  # fmt: skip
    return target


def choose_tokens(
    logits: torch.Tensor, choices: RowChoices, bitmask: torch.Tensor | None = None
) -> torch.Tensor:
    return draw_rows(logits, choices, bitmask, cut_rows(logits, choices, bitmask))


def block_of(vocab: int) -> int:
    return min(_BLOCK, next_power(vocab, 16))
