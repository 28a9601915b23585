"""Compiled passes over residual streams: what torch needs forty memory passes for, in one.

One thread, so that sums over rows are always taken in the same order. All arrays fp32, contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_LANES = 64
"""Rows balanced side by side."""


def _compiled(function: Callable[..., None]) -> Any:
    rules = {"contract", "reassoc", "nsz", "arcp"}
    return numba.njit(cache=True, nogil=True, fastmath=rules)(function)


@_compiled
def collapse(
    streams: Floats, pre: Floats, norm: Floats, eps: float, x: Floats, scales: Floats
) -> None:
    """x [T, D] = norm of the streams [T, n, D] weighted by pre [T, n].

    scales [T, 2]: reciprocal root mean square of all streams, and of the weighted sum.
    """
    num_rows, n, hidden = streams.shape
    for t in range(num_rows):
        squares = np.float32(0)
        for j in range(hidden):
            total = np.float32(0)
            for i in range(n):
                value = streams[t, i, j]
                squares += value * value
                total += pre[t, i] * value
            x[t, j] = total
        own = np.float32(0)
        for j in range(hidden):
            own += x[t, j] * x[t, j]
        scale = np.float32(1) / np.float32(math.sqrt(own / hidden + eps))
        scales[t, 0] = np.float32(1) / np.float32(math.sqrt(squares / (n * hidden) + eps))
        scales[t, 1] = scale
        for j in range(hidden):
            x[t, j] *= scale * norm[j]


@_compiled
def collapse_back(
    streams: Floats,
    pre: Floats,
    norm: Floats,
    scales: Floats,
    grad_x: Floats,
    grad_scale: Floats,
    grad_streams: Floats,
    grad_pre: Floats,
    grad_norm: Floats,
) -> None:
    """Adds to grad_streams [T, n, D]; grad_scale [T]: of the first of scales; grad_norm [D]."""
    num_rows, n, hidden = streams.shape
    total = np.empty(hidden, np.float32)
    given = np.empty(hidden, np.float32)
    for t in range(num_rows):
        scale = scales[t, 1]
        dot = np.float32(0)
        for j in range(hidden):
            value = np.float32(0)
            for i in range(n):
                value += pre[t, i] * streams[t, i, j]
            total[j] = value
            grad_norm[j] += grad_x[t, j] * value * scale
            given[j] = grad_x[t, j] * norm[j]
            dot += given[j] * value
        back = dot * scale * scale * scale / hidden
        for j in range(hidden):
            given[j] = given[j] * scale - total[j] * back
        whole = scales[t, 0]
        factor = -grad_scale[t] * whole * whole * whole / (n * hidden)
        for i in range(n):
            weight = pre[t, i]
            found = np.float32(0)
            for j in range(hidden):
                value = streams[t, i, j]
                found += given[j] * value
                grad_streams[t, i, j] += weight * given[j] + factor * value
            grad_pre[t, i] = found


@_compiled
def expand(streams: Floats, output: Floats, post: Floats, comb: Floats, result: Floats) -> None:
    """result[k] = post[k] * output + sum over j of comb[j, k] * streams[j]."""
    num_rows, n, hidden = streams.shape
    for t in range(num_rows):
        for k in range(n):
            weight = post[t, k]
            for d in range(hidden):
                result[t, k, d] = weight * output[t, d]
            for j in range(n):
                share = comb[t, j, k]
                for d in range(hidden):
                    result[t, k, d] += share * streams[t, j, d]


@_compiled
def expand_back(
    streams: Floats,
    output: Floats,
    post: Floats,
    comb: Floats,
    grad: Floats,
    grad_streams: Floats,
    grad_output: Floats,
    grad_post: Floats,
    grad_comb: Floats,
) -> None:
    """grad: of the result [T, n, D]."""
    num_rows, n, hidden = streams.shape
    for t in range(num_rows):
        for d in range(hidden):
            grad_output[t, d] = 0
        for j in range(n):
            for d in range(hidden):
                grad_streams[t, j, d] = 0
        for k in range(n):
            weight = post[t, k]
            found = np.float32(0)
            for d in range(hidden):
                found += grad[t, k, d] * output[t, d]
                grad_output[t, d] += weight * grad[t, k, d]
            grad_post[t, k] = found
            for j in range(n):
                share = comb[t, j, k]
                dot = np.float32(0)
                for d in range(hidden):
                    dot += grad[t, k, d] * streams[t, j, d]
                    grad_streams[t, j, d] += share * grad[t, k, d]
                grad_comb[t, j, k] = dot


@_compiled
def balance(begun: Floats, iterations: int, eps: float, comb: Floats) -> None:
    """Sinkhorn of begun [n, n, T] by columns and rows in turn, columns first and last."""
    n, num_rows = begun.shape[0], begun.shape[2]
    given, found = begun.reshape(n * n, num_rows), comb.reshape(n * n, num_rows)
    work = np.zeros((n * n, _LANES), np.float32)
    factors = np.empty(_LANES, np.float32)
    for first in range(0, num_rows, _LANES):
        count = min(_LANES, num_rows - first)
        work[:, :count] = given[:, first : first + count]
        for step in range(2 * iterations - 1):
            along, across = (n, 1) if step % 2 == 0 else (1, n)
            for a in range(n):
                factors[:] = eps
                for b in range(n):
                    for lane in range(_LANES):
                        factors[lane] += work[a * across + b * along, lane]
                for lane in range(_LANES):
                    factors[lane] = np.float32(1) / factors[lane]
                for b in range(n):
                    for lane in range(_LANES):
                        work[a * across + b * along, lane] *= factors[lane]
        found[:, first : first + count] = work[:, :count]


@_compiled
def balance_back(
    begun: Floats, iterations: int, eps: float, grad: Floats, grad_begun: Floats
) -> None:
    """grad, grad_begun: [n, n, T], of comb and of begun."""
    n, num_rows = begun.shape[0], begun.shape[2]
    given, wanted = begun.reshape(n * n, num_rows), grad.reshape(n * n, num_rows)
    found, steps = grad_begun.reshape(n * n, num_rows), 2 * iterations - 1
    states = np.zeros((steps + 1, n * n, _LANES), np.float32)
    factors = np.empty((steps, n, _LANES), np.float32)
    back = np.zeros((n * n, _LANES), np.float32)
    dots = np.empty(_LANES, np.float32)
    for first in range(0, num_rows, _LANES):
        count = min(_LANES, num_rows - first)
        states[0, :, :count] = given[:, first : first + count]
        back[:, :count] = wanted[:, first : first + count]
        for step in range(steps):
            along, across = (n, 1) if step % 2 == 0 else (1, n)
            for a in range(n):
                factors[step, a] = eps
                for b in range(n):
                    for lane in range(_LANES):
                        factors[step, a, lane] += states[step, a * across + b * along, lane]
                for lane in range(_LANES):
                    factors[step, a, lane] = np.float32(1) / factors[step, a, lane]
                for b in range(n):
                    place = a * across + b * along
                    for lane in range(_LANES):
                        value = states[step, place, lane] * factors[step, a, lane]
                        states[step + 1, place, lane] = value
        for step in range(steps - 1, -1, -1):
            along, across = (n, 1) if step % 2 == 0 else (1, n)
            for a in range(n):
                dots[:] = 0
                for b in range(n):
                    place = a * across + b * along
                    for lane in range(_LANES):
                        dots[lane] += back[place, lane] * states[step + 1, place, lane]
                for b in range(n):
                    place = a * across + b * along
                    for lane in range(_LANES):
                        value = (back[place, lane] - dots[lane]) * factors[step, a, lane]
                        back[place, lane] = value
        found[:, first : first + count] = back[:, :count]
