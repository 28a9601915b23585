"""The weights that learn: their first values, their dtype in products, and the published layout."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.prepare.random_v41 import random_tensors

from training.tiny_v41.model.wiring import wire

Weights = dict[str, torch.Tensor]
_WIDE = ("embed.weight", ".gate.weight", "hc_", "_norm.weight", "norm.weight", "confidence_head")
"""Parts of names of tensors that are used in fp32."""


def first_weights(
    fields: Mapping[str, Any], seed: int, twins: Sequence[tuple[int, int]] = ()
) -> Weights:
    """fp32 weights to begin with: random, but for wiring.py; experts joined.

    twins: see wiring.wire.
    """
    config = DeepseekConfig.from_hf({**fields})
    shapes = {name: tuple(t.shape) for name, t in random_tensors({**fields}, 0).items()}
    generator = torch.Generator().manual_seed(seed)
    plain = {name: _first(name, shape, config, generator) for name, shape in sorted(shapes.items())}
    wire(plain, config, twins)
    return join_experts(plain)


def _first(
    name: str, shape: tuple[int, ...], config: DeepseekConfig, generator: torch.Generator
) -> torch.Tensor:
    if name.endswith(("_norm.weight", "norm.weight", "norm1.weight", "norm2.weight")):
        return torch.ones(shape)
    if "hc_" in name:
        return _first_mix(name, shape, config, generator)
    if name.endswith((".bias", ".bias_vl", "attn_sink")):
        return torch.zeros(shape)
    values: torch.Tensor = torch.randn(shape, generator=generator)
    if name.endswith("markov_head.head.weight") or "confidence_head" in name:
        return torch.zeros(shape)
    if name.startswith("image_") or name.endswith("embed.weight"):
        return values * 0.5
    if name == "head.weight":
        return values * 0.02
    return values * (0.5 / math.sqrt(shape[-1]) if _writes(name) else 1 / math.sqrt(shape[-1]))


def _writes(name: str) -> bool:
    """Matrices whose output goes to the streams."""
    return name.endswith(("attn.wo_b.weight", ".w2.weight"))


def _first_mix(
    name: str, shape: tuple[int, ...], config: DeepseekConfig, generator: torch.Generator
) -> torch.Tensor:
    """A sublayer reads one stream most, in turn, and writes to all alike; streams stay apart."""
    n = config.streams.num_streams
    if name.endswith("_fn"):
        return torch.randn(shape, generator=generator) / math.sqrt(shape[1])
    if name.endswith("_scale"):
        return torch.full(shape, 0.05)
    layer = next(int(part) for part in name.split(".") if part.isdigit())
    favourite = (2 * layer + ("hc_ffn" in name)) % n
    pre = torch.full((n,), -1.5)
    pre[favourite] = 1.0
    post = 0.3 * torch.randn((n,), generator=generator)
    return torch.cat([pre, post, (4 * torch.eye(n)).flatten()])


def for_products(weights: Weights, dtype: torch.dtype) -> Weights:
    """Matrices in the dtype of the products, all else as it is; gradients flow back."""
    return {
        name: value if value.dim() < 2 or any(part in name for part in _WIDE) else value.to(dtype)
        for name, value in weights.items()
    }


def join_experts(tensors: Weights) -> Weights:
    """One tensor for all experts of a layer, the shared one last."""
    joined = {name: value for name, value in tensors.items() if "experts" not in name}
    for prefix in sorted({name.partition("ffn.")[0] for name in tensors if "experts" in name}):
        numbers = {
            int(name.split(".experts.")[1].split(".")[0])
            for name in tensors
            if name.startswith(f"{prefix}ffn.experts.")
        }
        places = [f"{prefix}ffn.experts.{number}" for number in range(len(numbers))]
        places.append(f"{prefix}ffn.shared_experts")
        joined[f"{prefix}ffn.experts.w13"] = torch.stack(
            [torch.cat([tensors[f"{p}.w1.weight"], tensors[f"{p}.w3.weight"]]) for p in places]
        )
        joined[f"{prefix}ffn.experts.w2"] = torch.stack([tensors[f"{p}.w2.weight"] for p in places])
    return joined


def published(weights: Weights) -> Weights:
    """Names and tensors of a checkpoint: matrices bf16, the rest fp32."""
    plain: Weights = {}
    for name, value in weights.items():
        if ".experts.w" in name:
            plain |= dict(_apart(name, value))
        else:
            plain[name] = value
    return {name: _stored(name, value.detach()).clone() for name, value in plain.items()}


def _apart(name: str, value: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
    prefix = name.partition("experts.")[0]
    for number, matrix in enumerate(value):
        is_shared = number == len(value) - 1
        place = f"{prefix}shared_experts" if is_shared else f"{prefix}experts.{number}"
        if name.endswith("w2"):
            yield f"{place}.w2.weight", matrix
            continue
        for part, half in zip(("w1", "w3"), matrix.chunk(2), strict=True):
            yield f"{place}.{part}.weight", half


def _stored(name: str, value: torch.Tensor) -> torch.Tensor:
    is_matrix = value.dim() == 2 and "hc_" not in name
    return value.to(torch.bfloat16 if is_matrix else torch.float32)
