"""The counter-based noise of sampling.py on any device, in streams that do not meet."""

from __future__ import annotations

import torch

DRAW = 0
"""Stream of plain draws: exactly sampling.uniforms."""
ACCEPT = 0x5851F42D4C957F2D
"""Stream that decides whether a draft is accepted."""
DRAFT = 0x14057B7EF767814F
"""Stream that drafts themselves are drawn with."""


def uniforms(seeds: torch.Tensor, positions: torch.Tensor, stream: int = DRAW) -> torch.Tensor:
    """fp64 [n] in [0, 1), 53 random bits, one for every (seed, position, stream).

    seeds, positions: int64 [n]; a seed of 64 bits as the signed number of the same bits.
    """
    mixed = _finalise((seeds ^ stream) + _signed(0x9E3779B97F4A7C15)) ^ _finalise(~positions)
    return _shifted(_finalise(mixed), 11).double() * 2.0**-53


def _finalise(value: torch.Tensor) -> torch.Tensor:
    value = (value ^ _shifted(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shifted(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shifted(value, 31)


def _shifted(value: torch.Tensor, count: int) -> torch.Tensor:
    """Right, filling up with zeros."""
    return (value >> count) & ((1 << (64 - count)) - 1)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
