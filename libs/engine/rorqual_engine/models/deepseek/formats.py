"""Weights in 8 and 4 bits with shared scales, and what they stand for.

| stored | values | scales |
|---|---|---|
| FP8 | e4m3 [out, in] | one for 128 x 128 values: fp32, bf16 or e8m0 |
| MXFP8 | e4m3 [out, in] | one for 32 values of a row: e8m0 [out, in / 32] |
| MXFP4 | e2m1, two a byte, the first in the low half [out, in / 2] | as MXFP8 |

e8m0 is a power of two, 2 ** (code - 127), code 255 is no number; files may call it uint8.
A value times its scale is rounded once to fp32 and once to the dtype asked for; with powers of two
and bf16 both are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from rorqual_engine.models.exact_rows import exact_rows
from rorqual_engine.models.linear import Linear, by_rows, plain

FP8_BLOCK = 128
MX_GROUP = 32
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@cache
def e2m1_pairs(device: torch.device) -> torch.Tensor:
    """The two values of every byte, fp32 [256, 2]."""
    values = torch.tensor([*_E2M1, *(-value for value in _E2M1)])
    codes = torch.arange(256)
    return torch.stack([values[codes & 15], values[codes >> 4]], dim=-1).to(device)


def scales_as_floats(scales: torch.Tensor) -> torch.Tensor:
    """fp32; uint8 is read as e8m0."""
    if scales.dtype == torch.uint8:
        scales = scales.view(torch.float8_e8m0fnu)
    return scales.float()


@dataclass(frozen=True)
class Quantized:
    """A matrix as it is stored."""

    values: torch.Tensor
    """e4m3 [out, in], or uint8 [out, in / 2] of e2m1 pairs"""
    scales: torch.Tensor
    """As stored, one a block"""
    block: tuple[int, int]
    """Rows and columns that share a scale."""

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns * (2 if self.values.dtype == torch.uint8 else 1)

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """[out, in]"""
        if self.values.dtype == torch.uint8:
            wide = e2m1_pairs(self.values.device)[self.values.int()].flatten(1)
        else:
            wide = self.values.float()
        rows, columns = self.shape
        factor = scales_as_floats(self.scales).repeat_interleave(self.block[0], 0)[:rows]
        return (wide * factor.repeat_interleave(self.block[1], 1)[:, :columns]).to(dtype)

    def to(self, device: torch.device) -> Quantized:
        """A copy on the device."""
        values, scales = (t.to(device=device, copy=True) for t in (self.values, self.scales))
        return Quantized(values, scales, self.block)


def quantized(values: torch.Tensor, scales: torch.Tensor) -> Quantized:
    """The matrix of these two tensors of a file. Raises: ValueError saying what is wrong."""
    if values.dim() != 2 or scales.dim() != 2:
        raise ValueError(f"is a matrix with {values.dim()} and scales with {scales.dim()} axes")
    rows, columns = values.shape
    if values.dtype in (torch.int8, torch.uint8):
        values, columns = values.view(torch.uint8), 2 * columns
    elif values.dtype != torch.float8_e4m3fn:
        raise ValueError(f"has scales, but dtype {values.dtype}")
    grid = tuple(scales.shape)
    if bool(scales_as_floats(scales).isnan().any()):
        raise ValueError("has a scale that is no number")
    if columns % MX_GROUP == 0 and grid == (rows, columns // MX_GROUP):
        return Quantized(values, scales, (1, MX_GROUP))
    if values.dtype != torch.uint8 and grid == (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)):
        return Quantized(values, scales, (FP8_BLOCK, FP8_BLOCK))
    raise ValueError(f"of {rows} x {columns} values has scales of shape {grid}")


class QuantizedLinear(Linear):
    """Keeps matrices as they are stored, on top of each other; each product dequantises them.

    Gives the same bits as a Linear over the dequantised matrix, at a fraction of its memory.
    """

    def __init__(self, parts: list[Quantized], dtype: torch.dtype) -> None:
        self._parts, self._dtype = parts, dtype

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        weight = self.weight()
        return by_rows(plain(weight, None), rows, exact_rows(plain, weight, None))

    def stored(self) -> list[torch.Tensor]:
        return [tensor for part in self._parts for tensor in (part.values, part.scales)]

    def with_stored(self, tensors: Sequence[torch.Tensor]) -> QuantizedLinear:
        pairs = zip(tensors[::2], tensors[1::2], strict=True)
        parts = [
            Quantized(values, scales, part.block)
            for (values, scales), part in zip(pairs, self._parts, strict=True)
        ]
        return QuantizedLinear(parts, self._dtype)

    @property
    def num_bytes(self) -> int:
        return sum(part.values.nbytes + part.scales.nbytes for part in self._parts)

    def weight(self) -> torch.Tensor:
        """[out, in]"""
        return torch.cat([part.dequantized(self._dtype) for part in self._parts])
