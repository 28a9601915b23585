"""RMS norms: statistics and weights in fp32, one rounding at the end."""

from __future__ import annotations

import torch

from rorqual_engine.ref.precision import widened


def rms_norm(rows: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """rows [..., dim]; weight fp32 [dim] or None. Returns rows' dtype."""
    wide = rows.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (scaled if weight is None else scaled * weight).to(rows.dtype)


def exact_product(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """rows [T, in] @ matrix [out, in] -> fp32 [T, out], summed in fp64: whatever order a library
    sums in, the rounded result of a row stays the same. In fp32 on devices without fp64."""
    return (widened(rows) @ widened(matrix).T).float()
