"""Small number formats by their tables: nearest value, ties to the even code."""

from __future__ import annotations

import torch

_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
"""Magnitudes by code: the even codes are 0, 1, 2 and 4."""


def _e4m3_table() -> torch.Tensor:
    """Magnitudes by code, 0 to 448; code 127 is no number and left out."""
    codes = torch.arange(127)
    exponent, mantissa = (codes // 8).double(), (codes % 8).double()
    subnormal = mantissa / 8 * 2.0**-6
    return torch.where(codes < 8, subnormal, (1 + mantissa / 8) * 2.0 ** (exponent - 7))


_E4M3 = _e4m3_table()


def round_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Nearest 4-bit value; beyond 6 it is 6."""
    return _nearest(values, _E2M1)


def round_e4m3(values: torch.Tensor) -> torch.Tensor:
    """Nearest 8-bit value; beyond 448 it is 448."""
    return _nearest(values, _E4M3)


def round_entries(values: torch.Tensor) -> torch.Tensor:
    """Compressed entries: 4 bits each, one e4m3 scale for 16."""
    groups = values.double().unflatten(-1, (-1, 16))
    amax = groups.abs().amax(-1, keepdim=True)
    scale = round_e4m3((amax / 6).clamp(2.0**-9, 448.0))
    return (round_e2m1(groups / scale) * scale).flatten(-2).to(values.dtype)


def round_index(values: torch.Tensor) -> torch.Tensor:
    """Index queries and keys: 4 bits each, for 32 the least power of two with which none clips."""
    groups = values.double().unflatten(-1, (-1, 32))
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126)
    scale = torch.exp2(torch.ceil(torch.log2(amax / 6)))
    return (round_e2m1(groups / scale) * scale).flatten(-2).to(values.dtype)


def _nearest(values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Looks at every value of the table; of two equally near ones the even code wins."""
    magnitude = values.double().abs().clamp(max=table[-1].item()).unsqueeze(-1)
    distance = (magnitude - table).abs()
    is_nearest = distance == distance.amin(-1, keepdim=True)
    is_odd = (torch.arange(len(table)) % 2).double()
    code = torch.where(is_nearest, is_odd, 2.0).argmin(-1)
    return (table[code] * values.double().sign()).to(values.dtype)
