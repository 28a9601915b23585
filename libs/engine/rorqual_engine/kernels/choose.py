"""Drawing one token of one row: top-k, top-p, min-p and the inverse of the distribution."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import njit

BINS_PER_UNIT = 64
NUM_BINS = 4096
"""Scaled logits are sorted into bins of 1/64; the last bin takes the far tail."""
NEAR = 10.0
NEAR_WEIGHT = 4.6e-5
"""exp(-NEAR), rounded up. Cuts mostly keep tokens of at least this weight only; then the others
are not looked at."""


def choose_token(scaled, weights, total, top_k, top_p, min_p, uniform):
    """The token that `uniform` names in the cut distribution.

    scaled: float32 [vocab], logits over temperature minus their maximum, so the largest is 0
    weights: float32 [vocab], exp(scaled); total: their sum
    Order everywhere: by scaled descending, then by token id.
    """
    if top_k <= 0 and top_p >= 1.0 and min_p <= 0.0:
        return _draw(scaled, weights, total, top_k, top_p, min_p, uniform)
    near = np.empty(len(scaled), np.int64)
    n = 0
    for i in range(len(scaled)):
        near[n] = i
        n += scaled[i] > -NEAR
    near = near[:n]
    near_scaled, near_weights = scaled[near], weights[near]
    if top_k > 0:
        is_enough = top_k < n
    else:
        is_enough = min_p >= NEAR_WEIGHT or top_p * total <= near_weights.sum()
    if is_enough:
        return near[_draw(near_scaled, near_weights, total, top_k, top_p, min_p, uniform)]
    return _draw(scaled, weights, total, top_k, top_p, min_p, uniform)


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
