"""Rotary position tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from rorqual_engine.errors import UnsupportedModel


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3's stretching of low frequencies for long contexts."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int


@dataclass(frozen=True)
class RopeParams:
    """How angles follow from positions."""

    theta: float
    head_dim: int
    scaling: Llama3Scaling | float | None = None
    """A float divides every frequency (linear scaling)."""


@dataclass(frozen=True)
class RopeTable:
    """cos and sin of every position, [positions, head_dim / 2], rounded to the model's dtype."""

    cos: torch.Tensor
    sin: torch.Tensor


def rope_params(config: dict[str, object], head_dim: int) -> RopeParams:
    """From a Hugging Face config, old form (rope_theta, rope_scaling) or new (rope_parameters).

    Raises: UnsupportedModel for an unknown kind of scaling.
    """
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    assert isinstance(scaling, dict)
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)  # type: ignore[arg-type]
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return RopeParams(theta, head_dim)
    if kind == "linear":
        return RopeParams(theta, head_dim, float(scaling["factor"]))
    if kind == "llama3":
        return RopeParams(
            theta,
            head_dim,
            Llama3Scaling(
                float(scaling["factor"]),
                float(scaling["low_freq_factor"]),
                float(scaling["high_freq_factor"]),
                int(scaling["original_max_position_embeddings"]),
            ),
        )
    raise UnsupportedModel(f"rope scaling {kind!r} is not known")


def frequencies(params: RopeParams) -> torch.Tensor:
    """Angle per position of each pair, fp32 [head_dim / 2]."""
    even = torch.arange(0, params.head_dim, 2, dtype=torch.int64).float()
    freq = 1.0 / (params.theta ** (even / params.head_dim))
    if params.scaling is None:
        return freq
    if isinstance(params.scaling, float):
        return freq / params.scaling
    return _llama3(freq, params.scaling)


def _llama3(freq: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Keeps short wavelengths, divides long ones by factor, blends those between."""
    context = scaling.original_context_tokens
    wavelength = 2 * math.pi / freq
    blend = (context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - blend) * freq / scaling.factor + blend * freq
    is_long = wavelength > context / scaling.low_freq_factor
    is_short = wavelength < context / scaling.high_freq_factor
    return torch.where(is_long, freq / scaling.factor, torch.where(is_short, freq, between))


def build_table(
    params: RopeParams, num_positions: int, dtype: torch.dtype, device: torch.device
) -> RopeTable:
    """The table for positions 0 .. num_positions - 1, always computed whole and on the CPU."""
    angles = torch.arange(num_positions).float()[:, None] * frequencies(params)[None, :]
    return RopeTable(angles.cos().to(dtype).to(device), angles.sin().to(dtype).to(device))
