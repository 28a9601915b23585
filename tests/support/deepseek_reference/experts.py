"""Mixture of experts: routers by hash or by score, clamped SwiGLU."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.support.deepseek_reference.shape import Shape
from tests.support.deepseek_reference.tensors import Tensors


def mixture(
    x: torch.Tensor, ids: torch.Tensor, tensors: Tensors, shape: Shape, *, hashed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [T, D] of the experts and the shared one, and who was chosen [T, k]."""
    scores = functional.softplus(x @ tensors["gate.weight"].T).sqrt()
    chosen = tensors["gate.tid2eid"][ids] if hashed else _best(scores, ids, tensors, shape)
    weights = scores.gather(1, chosen)
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * shape.scale
    out = swiglu(x, tensors.at("shared_experts."), shape.clamp)
    for expert in chosen.unique().tolist():
        weight = torch.where(chosen == expert, weights, 0).sum(1, keepdim=True)
        rows = weight.flatten().nonzero().flatten()
        y = swiglu(x[rows], tensors.at(f"experts.{expert}."), shape.clamp)
        out = out.index_add(0, rows, weight[rows] * y)
    return out, chosen


def swiglu(x: torch.Tensor, tensors: Tensors, clamp: float) -> torch.Tensor:
    """w2 (silu(min(w1 x, clamp)) * clip(w3 x))."""
    gate = (x @ tensors["w1.weight"].T).clamp(max=clamp)
    up = (x @ tensors["w3.weight"].T).clamp(-clamp, clamp)
    return (functional.silu(gate) * up) @ tensors["w2.weight"].T


def _best(scores: torch.Tensor, ids: torch.Tensor, tensors: Tensors, shape: Shape) -> torch.Tensor:
    """By score and bias; the weights do not know the bias. Images have a bias of their own."""
    bias = tensors["gate.bias"].expand_as(scores)
    if shape.image_id is not None and "gate.bias_vl" in tensors:
        is_image = (ids == shape.image_id).unsqueeze(1)
        bias = torch.where(is_image, tensors["gate.bias_vl"], bias)
    order = torch.sort(scores + bias, dim=-1, descending=True, stable=True).indices
    return order[:, : shape.top_k]
