"""Experts that learn: rows sorted by expert, one product for each."""

from __future__ import annotations

from typing import Any

import torch
from rorqual_engine.models.deepseek.config import MoeConfig
from torch.autograd import Function
from torch.nn import functional

Weights = dict[str, torch.Tensor]
UP, DOWN = "ffn.experts.w13", "ffn.experts.w2"
"""All experts in one, the shared one last: [experts + 1, 2 * inner, D], [experts + 1, D, inner]."""
_ROWS = 32
"""An expert's rows are filled up to multiples of so many."""


def mix_experts(
    x: torch.Tensor, weights: Weights, config: MoeConfig, is_image: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(what the experts make of fp32 rows x [T, D], fp32; the experts chosen, int64 [T, k])."""
    experts, shares = _route(x, weights, config, is_image)
    rows = x.to(weights[UP].dtype)
    places, counts = _placed_by_expert(experts, config.num_experts)
    spread = rows.new_zeros((sum(counts), rows.shape[1]))
    spread = spread.index_copy(0, places.flatten(), rows.repeat_interleave(config.top_k, dim=0))
    spread, counts = torch.cat([spread, rows]), [*counts, len(rows)]
    inner = _gated(_grouped(spread, weights[UP], counts), config.clamp)
    results = _grouped(inner, weights[DOWN], counts)
    placed = results.index_select(0, places.flatten()).view(*places.shape, -1)
    return (placed * shares[..., None]).sum(1) + results[-len(rows) :], experts


@torch.no_grad()
def _placed_by_expert(experts: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, list[int]]:
    """(place of every choice in rows sorted by expert, as experts; rows of each expert, filled up
    to whole multiples: a library makes a product anew for every size it has not seen)."""
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    counts = flat.bincount(minlength=num_experts)
    padded = (counts + _ROWS - 1) // _ROWS * _ROWS
    shifts = (padded.cumsum(0) - padded) - (counts.cumsum(0) - counts)
    places = torch.empty_like(flat)
    places[order] = torch.arange(len(flat)) + shifts[flat[order]]
    return places.view_as(experts), padded.tolist()


def _route(
    x: torch.Tensor, weights: Weights, config: MoeConfig, is_image: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = functional.softplus(functional.linear(x, weights["ffn.gate.weight"])).sqrt()
    with torch.no_grad():
        bias = weights["ffn.gate.bias"]
        if is_image is not None and "ffn.gate.bias_vl" in weights:
            bias = torch.where(is_image[:, None], weights["ffn.gate.bias_vl"], bias)
        order = (scores + bias).sort(dim=-1, descending=True, stable=True).indices
        experts = order[:, : config.top_k]
    chosen = scores.gather(1, experts)
    return experts, chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * config.scale


class _Grouped(Function):
    """Groups of rows [R, in], each times its own matrix of [groups, out, in]: [R, out]."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, rows: torch.Tensor, matrices: torch.Tensor, counts: list[int]
    ) -> torch.Tensor:
        result = rows.new_empty((len(rows), matrices.shape[1]))
        parts = zip(torch.split(result, counts), torch.split(rows, counts), matrices, strict=True)
        for out, part, matrix in parts:
            torch.mm(part, matrix.T, out=out)
        ctx.save_for_backward(rows, matrices)
        ctx.counts = counts
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        rows, matrices = ctx.saved_tensors
        grad_rows, grad_matrices = torch.empty_like(rows), torch.empty_like(matrices)
        grads, given = torch.split(grad, ctx.counts), torch.split(rows, ctx.counts)
        for number, out in enumerate(torch.split(grad_rows, ctx.counts)):
            torch.mm(grads[number], matrices[number], out=out)
            torch.mm(grads[number].T, given[number], out=grad_matrices[number])
        return grad_rows, grad_matrices, None


class _Gated(Function):
    """silu of the first half of the columns, cut off above, times the second, cut off at both ends.
    Nothing flows back through what was cut off."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, clamp: float) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(rows)
        ctx.clamp = clamp
        gate, value = rows.chunk(2, dim=-1)
        return functional.silu(gate.clamp(max=clamp)) * value.clamp(-clamp, clamp)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        (rows,) = ctx.saved_tensors
        raw = rows.chunk(2, dim=-1)
        gate, value = raw[0].clamp(max=ctx.clamp), raw[1].clamp(-ctx.clamp, ctx.clamp)
        to_value = grad * functional.silu(gate)
        to_gate = torch.ops.aten.silu_backward(grad * value, gate)
        is_kept = [half <= ctx.clamp for half in (raw[0], raw[1].abs())]
        return torch.cat([to_gate * is_kept[0], to_value * is_kept[1]], dim=-1), None


_grouped: Any = _Grouped.apply
_gated: Any = _Gated.apply
