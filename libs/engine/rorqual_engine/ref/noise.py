"""The counter-based noise of sampling.py on any device."""

from __future__ import annotations

import torch


def uniforms(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """fp64 [n] in [0, 1), 53 random bits, one for every (seed, position).

    seeds, positions: int64 [n]; a seed of 64 bits as the signed number of the same bits.
    """
    mixed = _finalise(seeds + _signed(0x9E3779B97F4A7C15)) ^ _finalise(~positions)
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
