"""Matrices in the 8 and 4 bit formats of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import torch

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def fp8_blocks(matrix: torch.Tensor, scale_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(e4m3 values, one scale for 128 x 128) near the matrix."""
    rows, columns = (-(-size // 128) for size in matrix.shape)
    scales = torch.empty(rows, columns)
    for r in range(rows):
        for c in range(columns):
            part = matrix[128 * r : 128 * (r + 1), 128 * c : 128 * (c + 1)]
            scales[r, c] = part.float().abs().max() / 448
    if scale_dtype == torch.float8_e8m0fnu:
        scales = torch.exp2(torch.ceil(torch.log2(scales)))
    wide = scales.repeat_interleave(128, 0)[: matrix.shape[0]]
    wide = wide.repeat_interleave(128, 1)[:, : matrix.shape[1]]
    return (matrix.float() / wide).to(torch.float8_e4m3fn), scales.to(scale_dtype)


def mxfp4(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(int8 pairs of e2m1, one e8m0 scale for 32 of a row) near the matrix."""
    groups = matrix.float().unflatten(1, (-1, 32))
    scales = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(-1) / 6)))
    scaled = (groups / scales.unsqueeze(-1)).flatten(1)
    codes = (scaled.abs().unsqueeze(-1) - torch.tensor(E2M1)).abs().argmin(-1)
    codes = codes + 8 * (scaled < 0)
    packed = (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8).view(torch.int8)
    return packed, scales.to(torch.float8_e8m0fnu)


def quantize(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A checkpoint as published: routed experts in 4 bits, attention's matrices in 8."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        if ".experts." in name:
            found[name], found[_scales_of(name)] = mxfp4(tensor)
        elif ".attn.w" in name:
            stored = fp8_blocks(tensor, torch.float8_e8m0fnu)
            found[name], found[_scales_of(name)] = stored
    return found


def widen(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The values that such a checkpoint stands for, bf16."""
    return {
        name: _widened(tensor, tensors.get(_scales_of(name)))
        for name, tensor in tensors.items()
        if not name.endswith(".scale")
    }


def _widened(tensor: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    if scales is None:
        return tensor
    if tensor.dtype == torch.float8_e4m3fn:
        factor = scales.float().repeat_interleave(128, 0)[: tensor.shape[0]]
        factor = factor.repeat_interleave(128, 1)[:, : tensor.shape[1]]
        return (tensor.float() * factor).bfloat16()
    codes = tensor.view(torch.uint8).int()
    pairs = torch.stack([codes % 16, codes // 16], dim=-1).flatten(1)
    values = torch.tensor(E2M1)[pairs % 8] * (1 - 2 * (pairs // 8))
    return (values * scales.float().repeat_interleave(32, 1)).bfloat16()


def _scales_of(name: str) -> str:
    return name.removesuffix(".weight") + ".scale"
