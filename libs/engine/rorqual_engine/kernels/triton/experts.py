"""Twin of ref/experts.py: tiles of rows of one expert, two products and a sum over slots.

A row's products run over the inputs in the same blocks whatever tile it is in, and its slots add
up in order, so its bits do not depend on the batch.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rorqual_engine.kernels.triton.places import next_power, product
from rorqual_engine.ref.experts import group_rows

_BLOCK_M = 16
_BLOCK_N = 64
_BLOCK_K = 64


@triton.jit
def _gate_up(
    x, gate_up, order, item_experts, target, num_slots, width, inner, x_row, expert_stride,
    in_stride, out_stride, clamp, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    expert = tl.load(item_experts + item)
    if expert >= 0:
        place = tl.load(order + item * BLOCK_M + tl.arange(0, BLOCK_M))
        is_row = place >= 0
        row = tl.where(is_row, place, 0).to(tl.int64) // num_slots
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        matrix = gate_up + expert.to(tl.int64) * expert_stride
        for at in range(0, width, BLOCK_K):
            k = at + tl.arange(0, BLOCK_K)
            mask = is_row[:, None] & (k < width)[None, :]
            values = tl.load(x + row[:, None] * x_row + k[None, :], mask=mask, other=0.0)
            source = k.to(tl.int64)[:, None] * in_stride + n[None, :] * out_stride
            mask = (k < width)[:, None] & (n < inner)[None, :]
            weights = tl.load(matrix + source, mask=mask, other=0.0)
            gate += product(values, weights)
            weights = tl.load(matrix + source + inner * out_stride, mask=mask, other=0.0)
            up += product(values, weights)
        dtype = target.dtype.element_ty
        gate = tl.minimum(gate.to(dtype).to(tl.float32), clamp)
        up = tl.minimum(tl.maximum(up.to(dtype).to(tl.float32), -clamp), clamp)
        silu = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
        to = place.to(tl.int64)[:, None] * inner + n[None, :]
        mask = is_row[:, None] & (n < inner)[None, :]
        tl.store(target + to, (silu * up).to(dtype), mask=mask)


@triton.jit
def _down(
    x, down, order, item_experts, weights, target, width, inner, expert_stride, in_stride,
    out_stride, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    expert = tl.load(item_experts + item)
    if expert >= 0:
        place = tl.load(order + item * BLOCK_M + tl.arange(0, BLOCK_M))
        is_row = place >= 0
        row = tl.where(is_row, place, 0).to(tl.int64)
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        matrix = down + expert.to(tl.int64) * expert_stride
        for at in range(0, inner, BLOCK_K):
            k = at + tl.arange(0, BLOCK_K)
            mask = is_row[:, None] & (k < inner)[None, :]
            values = tl.load(x + row[:, None] * inner + k[None, :], mask=mask, other=0.0)
            source = k.to(tl.int64)[:, None] * in_stride + n[None, :] * out_stride
            mask = (k < inner)[:, None] & (n < width)[None, :]
            acc += product(values, tl.load(matrix + source, mask=mask, other=0.0))
        weight = tl.load(weights + row, mask=is_row, other=0.0)
        output = acc.to(x.dtype.element_ty).to(tl.float32) * weight[:, None]
        to = row[:, None] * width + n[None, :]
        tl.store(target + to, output, mask=is_row[:, None] & (n < width)[None, :])


@triton.jit
def _combine(parts, experts, target, num_slots, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in range(num_slots):
        place = row * num_slots + slot
        mask = d < tl.where(tl.load(experts + place) >= 0, width, 0)
        total += tl.load(parts + place * width + d, mask=mask, other=0.0)
    tl.store(target + row * width + d, total, mask=d < width)


def run_experts(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    clamp: float,
) -> torch.Tensor:
    num_rows, width = x.shape
    num_experts, inner = down.shape[0], down.shape[1]
    num_slots = experts.shape[1]
    target = torch.empty((num_rows, width), dtype=torch.float32, device=x.device)
    if not target.numel():
        return target
    if not num_slots:
        return target.zero_()
    x = x if x.stride(1) == 1 else x.contiguous()
    order, items = group_rows(experts, num_experts, _BLOCK_M)
    middle = x.new_empty((num_rows * num_slots, inner))
    parts = torch.empty((num_rows, num_slots, width), dtype=torch.float32, device=x.device)
    blocks = {"BLOCK_M": _BLOCK_M, "BLOCK_N": _BLOCK_N, "BLOCK_K": _BLOCK_K}
    _gate_up[(len(items), triton.cdiv(inner, _BLOCK_N))](
        x, gate_up, order, items, middle, num_slots, width, inner, x.stride(0), *gate_up.stride(),
        clamp, **blocks,
    )  # fmt: skip
    _down[(len(items), triton.cdiv(width, _BLOCK_N))](
        middle, down, order, items, weights.contiguous(), parts, width, inner, *down.stride(),
        **blocks,
    )  # fmt: skip
    block = min(1024, next_power(width))
    _combine[(num_rows, triton.cdiv(width, block))](
        parts, experts.contiguous(), target, num_slots, width, BLOCK=block
    )
    return target
