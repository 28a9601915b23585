"""Attention over a window and compressed entries at once, with sinks, by explicit masks."""

from __future__ import annotations

import torch

from tests.support.deepseek_reference.rotation import rms, rotate
from tests.support.deepseek_reference.shape import Rotation, Shape
from tests.support.deepseek_reference.tensors import Tensors


def latent_query(x: torch.Tensor, tensors: Tensors, shape: Shape) -> torch.Tensor:
    """RMSNorm(Wqa x), which the indexer reads too."""
    return rms(x @ tensors["wq_a.weight"].T, shape.eps, tensors["q_norm.weight"])


def window_keys(
    x: torch.Tensor, positions: torch.Tensor, tensors: Tensors, shape: Shape, rotation: Rotation
) -> torch.Tensor:
    """One shared head [T, d], key and value in one."""
    kv = rms(x @ tensors["wkv.weight"].T, shape.eps, tensors["kv_norm.weight"])
    return rotate(kv, positions, rotation)


def window_mask(num_rows: int, window: int, floor: int) -> torch.Tensor:
    """[T, T]: s is seen by t iff max(t - window + 1, floor) <= s <= t."""
    t, s = torch.arange(num_rows).unsqueeze(1), torch.arange(num_rows).unsqueeze(0)
    return (s <= t) & (s > t - window) & (s >= floor)


def attend(
    latent: torch.Tensor,
    positions: torch.Tensor,
    keys: torch.Tensor,
    mask: torch.Tensor,
    tensors: Tensors,
    shape: Shape,
    rotation: Rotation,
) -> torch.Tensor:
    """Output [T, D] of rows with queries from `latent`; keys [K, d], mask [T, K]."""
    query = (latent @ tensors["wq_b.weight"].T).unflatten(-1, (shape.heads, shape.dim))
    if shape.q_head_norm:
        query = rms(query, shape.eps)
    query = rotate(query, positions, rotation)
    logits = torch.einsum("thd,kd->thk", query, keys) * shape.dim**-0.5
    logits = logits.masked_fill(~mask.unsqueeze(1), -torch.inf)
    sink = tensors["attn_sink"].view(1, -1, 1).expand(len(query), -1, 1)
    weights = torch.softmax(torch.cat([logits, sink], -1), -1)[..., :-1]
    out = torch.einsum("thk,kd->thd", weights, keys)
    return _project(rotate(out, positions, rotation, back=True), tensors, shape)


def _project(out: torch.Tensor, tensors: Tensors, shape: Shape) -> torch.Tensor:
    """Each group of heads by its own block of Woa, then all by Wob."""
    grouped = out.flatten(1).unflatten(1, (shape.groups, -1))
    blocks = tensors["wo_a.weight"].unflatten(0, (shape.groups, -1))
    return torch.einsum("tgi,goi->tgo", grouped, blocks).flatten(1) @ tensors["wo_b.weight"].T
