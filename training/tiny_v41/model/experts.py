"""Experts that learn: rows sorted by expert, one product for each."""

from __future__ import annotations

import torch
from rorqual_engine.models.deepseek.config import MoeConfig
from torch.nn import functional

from training.tiny_v41.model.pieces import matmul

Weights = dict[str, torch.Tensor]
UP, DOWN = "ffn.experts.w13", "ffn.experts.w2"
"""All experts in one, the shared one last: [experts + 1, 2 * inner, D], [experts + 1, D, inner]."""


def mix_experts(
    x: torch.Tensor, weights: Weights, config: MoeConfig, is_image: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(what the experts make of fp32 rows x [T, D], fp32; the experts chosen, int64 [T, k])."""
    experts, shares = _route(x, weights, config, is_image)
    order = experts.flatten().argsort(stable=True)
    counts = experts.flatten().bincount(minlength=config.num_experts).tolist()
    rows = x.to(weights[UP].dtype)
    parts = list(torch.split(rows[order // config.top_k], counts))
    results = [
        _expert(part, weights[UP][number], weights[DOWN][number], config.clamp)
        for number, part in enumerate(parts)
        if len(part)
    ]
    placed = torch.cat(results)[order.argsort()].view(len(x), config.top_k, -1)
    mixed = torch.einsum("tkd,tk->td", placed.float(), shares)
    shared = _expert(rows, weights[UP][-1], weights[DOWN][-1], config.clamp)
    return mixed + shared.float(), experts


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
