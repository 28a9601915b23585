"""Values rounded to 4 bits with shared scales, as the quantised KV of V4.1 holds them."""

from __future__ import annotations

import torch

_LARGEST = 6.0
"""Of e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6."""


def round_entries(rows: torch.Tensor) -> torch.Tensor:
    """e2m1 with one e4m3 scale per 16 values; rows [..., dim], same dtype back (bf16 is exact)."""
    groups = rows.float().view(*rows.shape[:-1], -1, 16)
    scale = (groups.abs().amax(-1, keepdim=True) / _LARGEST).clamp(2**-9, 448)
    scale = scale.to(torch.float8_e4m3fn).float()
    return (round_e2m1(groups / scale) * scale).view(rows.shape).to(rows.dtype)


def round_index(rows: torch.Tensor) -> torch.Tensor:
    """e2m1 with one power of two per 32 values; rows [..., dim]."""
    groups = rows.float().view(*rows.shape[:-1], -1, min(32, rows.shape[-1]))
    peak = groups.abs().amax(-1, keepdim=True).clamp_min(2**-120)
    scale = torch.exp2(torch.ceil(torch.log2(peak / _LARGEST)))
    return (round_e2m1(groups / scale) * scale).view(rows.shape).to(rows.dtype)


def round_e2m1(values: torch.Tensor) -> torch.Tensor:
    """To the nearest of the 15 values, ties to the even code, beyond 6 to 6."""
    size = values.abs().clamp_max(_LARGEST)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.copysign(torch.round(size / step) * step, values)
