"""Twins of ref/streams.py."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rorqual_engine.kernels.triton.places import next_power, product

_BLOCK_T = 16
_BLOCK_K = 64
_BLOCK_D = 512
_SPLITS = 16
"""Spans of the inputs, each a program of its own: a step of few rows would otherwise leave a GPU
idle. They add up in one order, so a row's bits stay its own."""


@triton.jit(do_not_specialize=["num_rows"])
def _logits(
    streams, fn, partial, squares, num_rows, width, row_stride, SPAN: tl.constexpr,
    NUM_OUT: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One span of the inputs: what it adds to the logits and to the squares."""
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    split = tl.program_id(1)
    out = tl.arange(0, BLOCK_O)
    acc = tl.zeros((BLOCK_T, BLOCK_O), tl.float32)
    total = tl.zeros((BLOCK_T,), tl.float32)
    for at in range(0, SPAN, BLOCK_K):
        k = split * SPAN + at + tl.arange(0, BLOCK_K)
        mask = (row < num_rows)[:, None] & (k < width)[None, :]
        source = row.to(tl.int64)[:, None] * row_stride + k[None, :]
        values = tl.load(streams + source, mask=mask, other=0.0).to(tl.float32)
        mask = (k < width)[:, None] & (out < NUM_OUT)[None, :]
        weights = tl.load(fn + out[None, :] * width + k[:, None], mask=mask, other=0.0)
        acc += product(values, weights)
        total += tl.sum(values * values, 1)
    place = split.to(tl.int64) * num_rows + row
    tl.store(squares + place, total, mask=row < num_rows)
    to = place[:, None] * NUM_OUT + out[None, :]
    tl.store(partial + to, acc, mask=(row < num_rows)[:, None] & (out < NUM_OUT)[None, :])


@triton.jit
def _added(partial, splits, row, num_rows, at, NUM_OUT: tl.constexpr):
    """Logits `at` of a row, what all spans add."""
    place = (splits.to(tl.int64) * num_rows + row) * NUM_OUT
    return tl.sum(tl.load(partial + place[:, None] + at[None, :]), 0)


@triton.jit(do_not_specialize=["num_rows"])
def _balance(
    partial, squares, base, scale, pre, post, comb, num_rows, width, eps, hc_eps, iterations,
    N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    num_out: tl.constexpr = (2 + N) * N
    splits = tl.arange(0, SPLITS)
    square = tl.sum(tl.load(squares + splits * num_rows + row), 0)
    factor = tl.rsqrt(square / width + eps)
    i = tl.arange(0, N)
    value = _added(partial, splits, row, num_rows, i, num_out) * factor
    value = value * tl.load(scale) + tl.load(base + i)
    tl.store(pre + row * N + i, tl.sigmoid(value) + hc_eps)
    value = _added(partial, splits, row, num_rows, N + i, num_out) * factor
    value = value * tl.load(scale + 1) + tl.load(base + N + i)
    tl.store(post + row * N + i, 2 * tl.sigmoid(value))
    at = 2 * N + tl.arange(0, N * N)
    value = _added(partial, splits, row, num_rows, at, num_out) * factor
    value = tl.reshape(value * tl.load(scale + 2) + tl.load(base + at), (N, N))
    value = tl.exp(value - tl.max(value, 1)[:, None])
    value = value / tl.sum(value, 1)[:, None] + hc_eps
    value = value / (tl.sum(value, 0)[None, :] + hc_eps)
    for _ in range(1, iterations):
        value = value / (tl.sum(value, 1)[:, None] + hc_eps)
        value = value / (tl.sum(value, 0)[None, :] + hc_eps)
    tl.store(comb + row * N * N + i[:, None] * N + i[None, :], value)


@triton.jit
def _collapse(streams, pre, target, width, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    i = tl.arange(0, N)
    at = (row * N + i)[:, None] * width + d[None, :]
    values = tl.load(streams + at, mask=(d < width)[None, :], other=0.0).to(tl.float32)
    total = tl.sum(values * tl.load(pre + row * N + i)[:, None], 0)
    tl.store(target + row * width + d, total.to(target.dtype.element_ty), mask=d < width)


@triton.jit
def _expand(
    streams, output, post, comb, target, width, output_stride, N: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_d = d < width
    j = tl.arange(0, N)
    at = (row * N + j)[:, None] * width + d[None, :]
    values = tl.load(streams + at, mask=is_d[None, :], other=0.0).to(tl.float32)
    written = tl.load(output + row * output_stride + d, mask=is_d, other=0.0).to(tl.float32)
    for k in tl.static_range(N):
        weights = tl.load(comb + row * N * N + j * N + k)
        mixed = tl.sum(values * weights[:, None], 0)
        mixed += tl.load(post + row * N + k) * written
        to = target + (row * N + k) * width + d
        tl.store(to, mixed.to(target.dtype.element_ty), mask=is_d)


def mix_streams(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    *,
    eps: float,
    hc_eps: float,
    iterations: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """n must be a power of two."""
    num_rows, n, width = streams.shape
    num_out, inputs = len(fn), n * width
    partial = torch.empty((_SPLITS, num_rows, num_out), dtype=torch.float32, device=streams.device)
    squares = partial.new_empty((_SPLITS, num_rows))
    pre, post, comb = (partial.new_empty((num_rows, *s)) for s in ((n,), (n,), (n, n)))
    if num_rows:
        flat = streams.flatten(1)
        span = triton.cdiv(inputs, _SPLITS * _BLOCK_K) * _BLOCK_K
        _logits[(triton.cdiv(num_rows, _BLOCK_T), _SPLITS)](
            flat, fn.contiguous(), partial, squares, num_rows, inputs, flat.stride(0), SPAN=span,
            NUM_OUT=num_out, BLOCK_T=_BLOCK_T, BLOCK_O=next_power(num_out, 16), BLOCK_K=_BLOCK_K,
        )  # fmt: skip
        _balance[(num_rows,)](
            partial, squares, base, scale, pre, post, comb, num_rows, inputs, eps, hc_eps,
            iterations, N=n, SPLITS=_SPLITS,
        )  # fmt: skip
    return pre, post, comb


def collapse_streams(streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    num_rows, n, width = streams.shape
    target = streams.new_empty((num_rows, width))
    if target.numel():
        block = min(_BLOCK_D, next_power(width))
        _collapse[(num_rows, triton.cdiv(width, block))](
            streams.contiguous(), pre.contiguous(), target, width, N=n, BLOCK=block
        )
    return target


def expand_streams(
    streams: torch.Tensor, output: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    num_rows, n, width = streams.shape
    target = streams.new_empty(streams.shape)
    if target.numel():
        block = min(_BLOCK_D, next_power(width))
        output = output if output.stride(1) == 1 else output.contiguous()
        _expand[(num_rows, triton.cdiv(width, block))](
            streams.contiguous(), output, post.contiguous(), comb.contiguous(), target, width,
            output.stride(0), N=n, BLOCK=block,
        )  # fmt: skip
    return target
