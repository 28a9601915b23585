"""The vision tower of V4.1: pixels to the rows that stand in a prompt for an image.

Patches of all images of a batch go through the matrices together, row by row; attention stays
inside an image. So an image's rows do not depend on the images beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from rorqual_engine.models.deepseek.norms import rms_norm
from rorqual_engine.models.deepseek.vision_config import NUM_CHANNELS, TowerConfig, tower_shapes
from rorqual_engine.models.linear import Linear
from rorqual_engine.models.weights import Weights

Pixels = npt.NDArray[np.uint8]
"""[height, width, 3], both sides multiples of the patch."""


@dataclass(frozen=True)
class _Grid:
    """Patches of one image within the batch, row after row of the image."""

    start: int
    height: int
    width: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.height * self.width)


class _Block:
    def __init__(self, weights: Weights, prefix: str, config: TowerConfig) -> None:
        self._heads, self._eps = config.num_heads, config.eps
        self._norm1 = weights.get(f"{prefix}.norm1.weight").float()
        self._norm2 = weights.get(f"{prefix}.norm2.weight").float()
        self._qkv = _linear(weights, f"{prefix}.attn.wqkv")
        self._out = _linear(weights, f"{prefix}.attn.wo")
        self._gate_up = Linear(weights.get(f"{prefix}.mlp.w1.weight"))
        self._down = Linear(weights.get(f"{prefix}.mlp.w2.weight"))

    def __call__(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], grids: Sequence[_Grid]
    ) -> torch.Tensor:
        """x: [P, dim]; angles: cos and sin [P, 1, head_dim / 2]."""
        x = x + self._out(self._attend(rms_norm(x, self._norm1, self._eps), angles, grids))
        gate, up = self._gate_up(rms_norm(x, self._norm2, self._eps)).chunk(2, dim=-1)
        return x + self._down(functional.silu(gate) * up)

    def _attend(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], grids: Sequence[_Grid]
    ) -> torch.Tensor:
        parts = self._qkv(x).chunk(3, dim=-1)
        q, k, v = (part.view(len(x), self._heads, -1) for part in parts)
        q, k = _rotate(q, angles), _rotate(k, angles)
        seen = [_seen(q[grid.rows], k[grid.rows], v[grid.rows]) for grid in grids]
        return torch.cat(seen).reshape(len(x), -1)


class VisionTower:
    """Tower and aligner of one checkpoint."""

    def __init__(self, weights: Weights, config: TowerConfig) -> None:
        """Raises: CorruptModel when a tensor is missing or has another shape."""
        for name, shape in tower_shapes(config):
            weights.check_shape(name, shape)
        self.config = config
        self._embed = _linear(weights, "vision.patch_embed.proj")
        prefixes = [f"vision.blocks.{layer}" for layer in range(config.num_layers)]
        self._blocks = [_Block(weights, prefix, config) for prefix in prefixes]
        self._norm = weights.get("vision.norm.weight").float()
        self._align = _linear(weights, "aligner.w1"), _linear(weights, "aligner.w2")
        self._start, self._newline, self._end = (
            weights.get(f"image_{mark}") for mark in ("start", "newline", "end")
        )

    @classmethod
    def load(
        cls, model_dir: Path, config: Mapping[str, Any], device: torch.device, dtype: torch.dtype
    ) -> VisionTower:
        """config: the parsed config.json. Raises: CorruptModel, ModelNotFound, UnsupportedModel."""
        return cls(Weights(model_dir, device, dtype), TowerConfig.from_hf(config))

    def encode(self, images: Sequence[Pixels]) -> list[torch.Tensor]:
        """Rows of each image, [num_tokens, hidden] as they stand in the prompt."""
        if not images:
            return []
        with torch.inference_mode():
            grids = self._grids(images)
            patches = torch.cat([patches_of(image, self.config.rules.patch) for image in images])
            x = self._embed(patches.to(self._newline.device, self._newline.dtype))
            angles = self._angles(grids, x.device)
            for block in self._blocks:
                x = block(x, angles, grids)
            x = rms_norm(x, self._norm, self.config.eps)
            return [self._placed(x[grid.rows], grid) for grid in grids]

    def _grids(self, images: Sequence[Pixels]) -> list[_Grid]:
        patch, start = self.config.rules.patch, 0
        grids = []
        for image in images:
            height, width, channels = image.shape
            if height % patch or width % patch or channels != NUM_CHANNELS or not image.size:
                raise ValueError(f"pixels of shape {image.shape} are no whole patches of {patch}")
            grids.append(_Grid(start, height // patch, width // patch))
            start = grids[-1].rows.stop
        return grids

    def _angles(
        self, grids: Sequence[_Grid], device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Half of a head's pairs turn by the patch's row, the other half by its column."""
        axis_dim = self.config.head_dim // 2
        exponents = torch.arange(0, axis_dim, 2, dtype=torch.float32) / axis_dim
        frequencies = 1.0 / self.config.theta**exponents
        angles = []
        for grid in grids:
            rows = torch.arange(grid.height).repeat_interleave(grid.width)
            columns = torch.arange(grid.width).repeat(grid.height)
            places = torch.stack([rows, columns], dim=1).float()
            angles.append((places.unsqueeze(-1) * frequencies).flatten(1))
        turned = torch.cat(angles).unsqueeze(1).to(device)
        return turned.cos(), turned.sin()

    def _placed(self, x: torch.Tensor, grid: _Grid) -> torch.Tensor:
        """A start, each line of tokens with a newline behind it, an end."""
        first, second = self._align
        step = self.config.rules.downsample
        image = x.view(grid.height, grid.width, -1).permute(2, 0, 1)
        image = functional.pad(image, (0, -grid.width % step, 0, -grid.height % step))
        num_rows, num_columns = image.shape[1] // step, image.shape[2] // step
        cells = image.reshape(-1, num_rows, step, num_columns, step)
        cells = cells.permute(1, 3, 0, 2, 4).reshape(num_rows * num_columns, -1)
        tokens = second(functional.gelu(first(cells.contiguous())))
        lines = tokens.view(num_rows, num_columns, -1)
        newlines = self._newline.expand(num_rows, 1, -1)
        body = torch.cat([lines, newlines], dim=1).flatten(0, 1)
        return torch.cat([self._start[None], body, self._end[None]])


def patches_of(pixels: Pixels, patch: int) -> torch.Tensor:
    """fp32 [P, 3 * patch * patch] in [-1, 1], channel after channel, in reading order."""
    height, width = pixels.shape[0] // patch, pixels.shape[1] // patch
    values = torch.from_numpy(np.array(pixels)).float() / 255
    cut = ((values - 0.5) / 0.5).view(height, patch, width, patch, NUM_CHANNELS)
    return cut.permute(0, 2, 4, 1, 3).reshape(height * width, -1)


def _seen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Every patch of one image sees every other. q, k, v: [P, heads, head_dim]."""
    q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


def _rotate(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Pairs are (i, i + head_dim / 2); in fp32. x: [P, heads, head_dim]."""
    cos, sin = angles
    first, second = x.float().chunk(2, dim=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat(turned, dim=-1).to(x.dtype)


def _linear(weights: Weights, name: str) -> Linear:
    return Linear(weights.get(f"{name}.weight"), weights.get(f"{name}.bias"))
