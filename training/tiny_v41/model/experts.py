"""Experts that learn: rows sorted by expert, one product for each."""

from __future__ import annotations

import torch
from rorqual_engine.models.deepseek.config import MoeConfig
from torch.nn import functional

from training.tiny_v41.model.pieces import matmul

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
    ups, downs = weights[UP].unbind(), weights[DOWN].unbind()
    results = [
        _expert(part, up, down, config.clamp)
        for part, up, down in zip(torch.split(spread, counts), ups, downs, strict=False)
        if len(part)
    ]
    placed = torch.cat(results).index_select(0, places.flatten()).view(*places.shape, -1)
    mixed = torch.einsum("tkd,tk->td", placed.float(), shares)
    shared = _expert(rows, ups[-1], downs[-1], config.clamp)
    return mixed + shared.float(), experts


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


def _expert(rows: torch.Tensor, up: torch.Tensor, down: torch.Tensor, clamp: float) -> torch.Tensor:
    gate, value = matmul(rows, up).chunk(2, dim=-1)
    return matmul(functional.silu(gate.clamp(max=clamp)) * value.clamp(-clamp, clamp), down)
