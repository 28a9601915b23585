"""Products, norms and positions, as the engine computes them, with gradients."""

from __future__ import annotations

import torch
from rorqual_engine.models.deepseek.config import RopeConfig
from rorqual_engine.models.deepseek.rope import frequencies
from torch.nn import functional


def matmul(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """rows [..., in] times weight [out, in] in rows' dtype; the weight is fp32."""
    return functional.linear(rows, weight.to(rows.dtype))


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """fp32 rows [..., dim]."""
    return functional.rms_norm(rows, (rows.shape[-1],), weight, eps)


class Rope:
    """Turns the last dimensions of rows, in pairs, by their positions; fp32."""

    def __init__(self, config: RopeConfig, rope_dim: int, max_positions: int) -> None:
        freq = frequencies(config, rope_dim)
        angles = torch.arange(max_positions).float()[:, None] * freq
        self._turns = torch.polar(torch.ones_like(angles), angles)

    def turn(
        self, rows: torch.Tensor, positions: torch.Tensor, *, back: bool = False
    ) -> torch.Tensor:
        """rows: [B, S, ..., dim]; positions: int64 [S] or [B, S]."""
        turns = self._turns[positions]
        if back:
            turns = turns.conj()
        if positions.dim() == 1:
            turns = turns[None]
        for _ in range(rows.dim() - 3):
            turns = turns[:, :, None]
        width = 2 * turns.shape[-1]
        kept, turned = rows[..., :-width], rows[..., -width:]
        pairs = torch.view_as_complex(turned.reshape(*turned.shape[:-1], -1, 2))
        return torch.cat((kept, torch.view_as_real(pairs * turns).flatten(-2)), dim=-1)
