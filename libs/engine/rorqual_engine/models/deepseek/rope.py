"""Rotary positions on the last dimensions of a head, in pairs (2i, 2i + 1), computed in fp32."""

from __future__ import annotations

import math

import torch

from rorqual_engine.kernels.deepseek_attention_ops import Turn
from rorqual_engine.models.deepseek.config import RopeConfig, Yarn

_BLOCK = 4096
"""Positions a table grows by; always whole blocks, so that a position's values never vary."""


def frequencies(config: RopeConfig, rope_dim: int) -> torch.Tensor:
    """Angle per position of each pair, fp32 [rope_dim / 2]."""
    even = torch.arange(0, rope_dim, 2, dtype=torch.float32)
    freq = 1.0 / (config.theta ** (even / rope_dim))
    if config.yarn is None:
        return freq
    ramp = _ramp(config.theta, config.yarn, rope_dim)
    return freq / config.yarn.factor * ramp + freq * (1 - ramp)


def _ramp(theta: float, yarn: Yarn, rope_dim: int) -> torch.Tensor:
    """0 where a frequency stays, 1 where it is divided."""

    def turning_dim(rotations: float) -> float:
        tokens = yarn.original_tokens / (rotations * 2 * math.pi)
        return rope_dim * math.log(tokens) / (2 * math.log(theta))

    low = max(math.floor(turning_dim(yarn.beta_fast)), 0)
    high = min(math.ceil(turning_dim(yarn.beta_slow)), rope_dim - 1)
    width = high - low or 0.001
    index = torch.arange(rope_dim // 2, dtype=torch.float32)
    return ((index - low) / width).clamp(0, 1)


class RopeTable:
    """cos and sin of positions, fp32; grows as positions are asked for."""

    def __init__(self, config: RopeConfig, rope_dim: int, device: torch.device) -> None:
        self._freq, self._device = frequencies(config, rope_dim), device
        self._cos = torch.empty((0, rope_dim // 2), device=device)
        self._sin = torch.empty((0, rope_dim // 2), device=device)

    def up_to(self, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin) of at least the positions 0 .. num_positions - 1, [positions, pairs]."""
        while len(self._cos) < num_positions:
            start = len(self._cos)
            positions = torch.arange(start, start + max(_BLOCK, start)).float()
            blocks = torch.split(positions, _BLOCK)
            parts = [block[:, None] * self._freq[None, :] for block in blocks]
            cos = torch.cat([part.cos() for part in parts]).to(self._device)
            sin = torch.cat([part.sin() for part in parts]).to(self._device)
            self._cos, self._sin = torch.cat([self._cos, cos]), torch.cat([self._sin, sin])
        return self._cos, self._sin

    def turn(self, num_positions: int) -> Turn:
        """The table as compiled kernels take it, for at least so many positions."""
        return Turn(*self.up_to(num_positions))

    def at(self, positions: torch.Tensor, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin) of some positions, all of them below end, [n, pairs]."""
        cos, sin = self.up_to(end)
        return cos[positions], sin[positions]


def rotate(
    rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, back: bool = False
) -> torch.Tensor:
    """Turns the last 2 * pairs values of rows [T, ..., dim]; cos, sin [T, pairs]. back: by -angle.

    In fp32, one rounding to the dtype of rows.
    """
    pairs = cos.shape[-1]
    shape = (len(rows), *(1,) * (rows.dim() - 2), pairs)
    cos, sin = cos.view(shape), (-sin if back else sin).view(shape)
    kept, turned = rows[..., : -2 * pairs], rows[..., -2 * pairs :].float()
    even, odd = turned[..., 0::2], turned[..., 1::2]
    both = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    return torch.cat((kept, both.to(rows.dtype)), dim=-1)
