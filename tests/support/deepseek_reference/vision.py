"""The vision tower and its aligner, and where their rows stand in a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from tests.support.deepseek_reference.rotation import rms
from tests.support.deepseek_reference.tensors import Tensors

_EPS = 1e-6


class VisionReference:
    """config: the fields of config.json, with vision_config; tensors: the checkpoint."""

    def __init__(
        self,
        config: dict[str, Any],
        tensors: Mapping[str, torch.Tensor],
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.config: dict[str, Any] = config["vision_config"]
        self.tensors = Tensors(tensors, dtype)

    def tower(self, pixels: torch.Tensor) -> torch.Tensor:
        """Rows [h * w, C] of an image's patches in reading order; pixels [3, 14 h, 14 w]."""
        tensors, heads = self.tensors.at("vision."), self.config["num_attention_heads"]
        x = self._patches(pixels.to(tensors.dtype)) @ tensors["patch_embed.proj.weight"].T
        x = x + tensors["patch_embed.proj.bias"]
        patch = self.config["patch_size"]
        h, w = pixels.shape[1] // patch, pixels.shape[2] // patch
        angle = self._angles(h, w, x.shape[1] // heads)
        for block in range(self.config["num_hidden_layers"]):
            part = tensors.at(f"blocks.{block}.")
            x = x + self._attention(rms(x, _EPS, part["norm1.weight"]), angle, part.at("attn."))
            x = x + self._mlp(rms(x, _EPS, part["norm2.weight"]), part.at("mlp."))
        return rms(x, _EPS, tensors["norm.weight"])

    def _patches(self, pixels: torch.Tensor) -> torch.Tensor:
        """[h * w, 588]: channels, then rows, then columns of each patch."""
        patch = self.config["patch_size"]
        rows = []
        for top in range(0, pixels.shape[1], patch):
            for left in range(0, pixels.shape[2], patch):
                rows.append(pixels[:, top : top + patch, left : left + patch].reshape(-1))
        return torch.stack(rows)

    def _angles(self, h: int, w: int, dim: int) -> torch.Tensor:
        """[h * w, dim / 2]: frequencies times the row index, then the same times the column's."""
        half = dim // 2
        steps = torch.arange(0, half, 2, dtype=torch.float64)
        frequencies = self.config.get("rope_theta", 10000.0) ** (-steps / half)
        row = torch.arange(h * w) // w
        column = torch.arange(h * w) % w
        return torch.cat([row.unsqueeze(1) * frequencies, column.unsqueeze(1) * frequencies], 1)

    def _attention(self, x: torch.Tensor, angle: torch.Tensor, tensors: Tensors) -> torch.Tensor:
        heads = self.config["num_attention_heads"]
        joined = x @ tensors["wqkv.weight"].T + tensors["wqkv.bias"]
        q, k, v = (part.unflatten(1, (heads, -1)) for part in joined.chunk(3, 1))
        q, k = _turn(q, angle), _turn(k, angle)
        weights = torch.softmax(torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5, -1)
        out = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
        return out @ tensors["wo.weight"].T + tensors["wo.bias"]

    def _mlp(self, x: torch.Tensor, tensors: Tensors) -> torch.Tensor:
        """w1 holds the gate's rows, then the other factor's."""
        gate, up = (x @ tensors["w1.weight"].T).chunk(2, 1)
        return (functional.silu(gate) * up) @ tensors["w2.weight"].T

    def aligner(self, x: torch.Tensor, h: int, w: int) -> torch.Tensor:
        """Rows [ceil(h/3) * ceil(w/3), D]: 3 x 3 patches become one, missing ones are zero."""
        side, tensors = self.config["downsample"], self.tensors.at("aligner.")
        lh, lw = -(-h // side), -(-w // side)
        grid = x.new_zeros(lh * side, lw * side, x.shape[1])
        grid[:h, :w] = x.unflatten(0, (h, w))
        rows = []
        for top in range(0, lh * side, side):
            for left in range(0, lw * side, side):
                cell = grid[top : top + side, left : left + side]
                rows.append(cell.permute(2, 0, 1).reshape(-1))
        hidden = torch.stack(rows) @ tensors["w1.weight"].T + tensors["w1.bias"]
        return functional.gelu(hidden) @ tensors["w2.weight"].T + tensors["w2.bias"]

    def embeddings(self, pixels: torch.Tensor) -> torch.Tensor:
        """[lh * (lw + 1) + 2, D]: start, rows of the image each with a newline, end."""
        patch, side = self.config["patch_size"], self.config["downsample"]
        h, w = pixels.shape[1] // patch, pixels.shape[2] // patch
        rows = self.aligner(self.tower(pixels), h, w).unflatten(0, (-1, -(-w // side)))
        start, newline, end = (
            self.tensors[f"image_{name}"].unsqueeze(0) for name in ("start", "newline", "end")
        )
        parts = [start]
        for row in rows:
            parts += [row, newline]
        return torch.cat([*parts, end])


def _turn(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Pairs (j, j + dim/2) of [T, heads, dim] by their angles."""
    first, second = x.chunk(2, -1)
    cos, sin = angle.cos().unsqueeze(1).to(x), angle.sin().unsqueeze(1).to(x)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
