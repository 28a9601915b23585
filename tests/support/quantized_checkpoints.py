"""Matrices in the 8 and 4 bit formats of checkpoints."""

from __future__ import annotations

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
