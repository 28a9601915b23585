"""Manifold-constrained hyper-connections: how sublayers read from and write to the streams."""

from __future__ import annotations

import torch

from tests.support.deepseek_reference.rotation import rms
from tests.support.deepseek_reference.shape import Shape
from tests.support.deepseek_reference.tensors import Tensors


def mixing(
    residual: torch.Tensor, tensors: Tensors, name: str, shape: Shape
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pre [T, n], post [T, n], mix [T, n, n]) of the sublayer with tensors `name`_fn and so on."""
    n = shape.streams
    fn, base, scale = (tensors[f"{name}_{part}"] for part in ("fn", "base", "scale"))
    raw = rms(residual.flatten(1), shape.eps) @ fn.T
    pre = torch.sigmoid(raw[:, :n] * scale[0] + base[:n]) + shape.hc_eps
    post = 2 * torch.sigmoid(raw[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    logits = (raw[:, 2 * n :] * scale[2] + base[2 * n :]).view(-1, n, n)
    return pre, post, doubly_stochastic(logits, shape.sinkhorn, shape.hc_eps)


def doubly_stochastic(logits: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """Sinkhorn: rows by softmax, then columns and rows in turn; columns are the last."""
    mix = torch.softmax(logits, -1) + eps
    mix = mix / (mix.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        mix = mix / (mix.sum(-1, keepdim=True) + eps)
        mix = mix / (mix.sum(-2, keepdim=True) + eps)
    return mix


def collapse(residual: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """sum_i pre_i R_i."""
    return torch.einsum("ti,tid->td", pre, residual)


def expand(
    residual: torch.Tensor, y: torch.Tensor, post: torch.Tensor, mix: torch.Tensor
) -> torch.Tensor:
    """R'_k = post_k y + sum_j mix[j, k] R_j."""
    return post.unsqueeze(-1) * y.unsqueeze(1) + torch.einsum("tjk,tjd->tkd", mix, residual)


def head_weights(
    residual: torch.Tensor, tensors: Tensors, prefix: str, shape: Shape
) -> torch.Tensor:
    """V4: weights [T, n] with which the streams become one at the end."""
    fn, base, scale = (tensors[f"{prefix}hc_head_{part}"] for part in ("fn", "base", "scale"))
    raw = rms(residual.flatten(1), shape.eps) @ fn.T
    return torch.sigmoid(raw * scale + base) + shape.hc_eps
