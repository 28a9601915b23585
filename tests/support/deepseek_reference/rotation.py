"""RMS norms and rotary positions: interleaved pairs in the last dims of a head."""

from __future__ import annotations

import math

import torch

from tests.support.deepseek_reference.shape import Rotation


def rms(x: torch.Tensor, eps: float, weight: torch.Tensor | None = None) -> torch.Tensor:
    """x over its root mean square, times weight."""
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight


def frequencies(rotation: Rotation) -> torch.Tensor:
    """One for each pair, fp64. YaRN slows down the pairs that turn seldom within the original."""
    dim, theta = rotation.dim, rotation.theta
    plain = torch.tensor([theta ** (-2 * i / dim) for i in range(dim // 2)], dtype=torch.float64)
    if rotation.factor is None:
        return plain

    def correction(turns: float) -> float:
        ratio = rotation.original / (turns * 2 * math.pi)
        return dim * math.log(ratio) / (2 * math.log(theta))

    low = max(math.floor(correction(rotation.beta_fast)), 0)
    high = min(math.ceil(correction(rotation.beta_slow)), dim - 1)
    width = high - low if high > low else 0.001
    ramp = [min(max((i - low) / width, 0.0), 1.0) for i in range(dim // 2)]
    kept = 1 - torch.tensor(ramp, dtype=torch.float64)
    return plain / rotation.factor * (1 - kept) + plain * kept


def rotate(
    x: torch.Tensor, positions: torch.Tensor, rotation: Rotation, *, back: bool = False
) -> torch.Tensor:
    """Turns pairs (2i, 2i+1) of the last `dim` dims of x [rows, ..., d] by their row's position."""
    angle = positions.double().unsqueeze(-1) * frequencies(rotation)
    angle = angle.view(len(x), *[1] * (x.dim() - 2), rotation.dim // 2) * (-1 if back else 1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    still, turned = x[..., : -rotation.dim], x[..., -rotation.dim :]
    even, odd = turned[..., 0::2], turned[..., 1::2]
    pairs = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
    return torch.cat([still, pairs.flatten(-2)], -1)
