"""Names of tensors as published, from the ones that transformers saves."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def published(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors; names that are published ones already stay."""
    return {_published(name): tensor for name, tensor in tensors.items()}


def _published(name: str) -> str:
    name = name.removeprefix("model.")
    name = name.replace("embed_tokens.weight", "embed.weight")
    name = name.replace("hc_head.hc_", "hc_head_")
    return name.replace("attn.norm.weight", "attn.kv_norm.weight")
