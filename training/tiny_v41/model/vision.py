"""The vision tower with gradients, over images of one size."""

from __future__ import annotations

import torch
from rorqual_engine.models.deepseek.vision_config import NUM_CHANNELS, TowerConfig
from torch.nn import functional

from training.tiny_v41.model.pieces import rms_norm

Weights = dict[str, torch.Tensor]
_LIKENESS = 0.2
"""A row that is a word's embedding is that word with a logit of about ten."""


class VisionModel:
    """Formulas of one tower; the weights come with every call."""

    def __init__(self, config: TowerConfig) -> None:
        self.config = config

    def __call__(self, weights: Weights, pixels: torch.Tensor) -> torch.Tensor:
        """fp32 rows of all images as they stand in prompts, [N * tokens, hidden].

        pixels: uint8 [N, height, width, 3], sides in whole patches.
        """
        patch = self.config.rules.patch
        num_images, height, width = len(pixels), *(side // patch for side in pixels.shape[1:3])
        x = self._linear(weights, "vision.patch_embed.proj", self._patches(pixels))
        angles = self._angles(height, width)
        for layer in range(self.config.num_layers):
            x = self._block(weights, f"vision.blocks.{layer}", x, angles)
        x = rms_norm(x, weights["vision.norm.weight"], self.config.eps)
        return self._placed(weights, x.view(num_images, height, width, -1))

    def _patches(self, pixels: torch.Tensor) -> torch.Tensor:
        """[N, P, 3 * patch * patch] in [-1, 1]."""
        patch, (num_images, height, width) = self.config.rules.patch, pixels.shape[:3]
        values = (pixels.float() / 255 - 0.5) / 0.5
        cut = values.view(num_images, height // patch, patch, width // patch, patch, NUM_CHANNELS)
        return cut.permute(0, 1, 3, 5, 2, 4).flatten(3).flatten(1, 2)

    def _angles(self, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, [P, head_dim / 2]."""
        axis_dim = self.config.head_dim // 2
        exponents = torch.arange(0, axis_dim, 2, dtype=torch.float32) / axis_dim
        frequencies = 1.0 / self.config.theta**exponents
        rows = torch.arange(height).repeat_interleave(width)
        places = torch.stack([rows, torch.arange(width).repeat(height)], dim=1).float()
        turned = (places.unsqueeze(-1) * frequencies).flatten(1)
        return turned.cos(), turned.sin()

    def _block(
        self,
        weights: Weights,
        prefix: str,
        x: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        eps, heads = self.config.eps, self.config.num_heads
        normed = rms_norm(x, weights[f"{prefix}.norm1.weight"], eps)
        qkv = self._linear(weights, f"{prefix}.attn.wqkv", normed)
        q, k, v = (
            part.view(*part.shape[:2], heads, -1).transpose(1, 2) for part in qkv.chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(_turn(q, angles), _turn(k, angles), v)
        x = x + self._linear(weights, f"{prefix}.attn.wo", seen.transpose(1, 2).flatten(2))
        normed = rms_norm(x, weights[f"{prefix}.norm2.weight"], eps)
        gate, up = self._linear(weights, f"{prefix}.mlp.w1", normed).chunk(2, dim=-1)
        return x + self._linear(weights, f"{prefix}.mlp.w2", functional.silu(gate) * up)

    def _placed(self, weights: Weights, x: torch.Tensor) -> torch.Tensor:
        """A start, each line of tokens with a newline behind it, an end; x: [N, h, w, dim]."""
        step, num_images = self.config.rules.downsample, len(x)
        image = x.permute(0, 3, 1, 2)
        image = functional.pad(image, (0, -image.shape[3] % step, 0, -image.shape[2] % step))
        rows, columns = image.shape[2] // step, image.shape[3] // step
        cells = image.reshape(num_images, -1, rows, step, columns, step)
        cells = cells.permute(0, 2, 4, 1, 3, 5).reshape(num_images, rows, columns, -1)
        inner = functional.gelu(self._linear(weights, "aligner.w1", cells))
        lines = self._linear(weights, "aligner.w2", inner)
        newline = weights["image_newline"].expand(num_images, rows, 1, -1)
        body = torch.cat([lines, newline], dim=2).flatten(1, 2)
        ends = [weights[f"image_{end}"].expand(num_images, 1, -1) for end in ("start", "end")]
        return torch.cat([ends[0], body, ends[1]], dim=1).flatten(0, 1)

    def _linear(self, weights: Weights, name: str, rows: torch.Tensor) -> torch.Tensor:
        """fp32 rows in and out; the product in the weight's dtype."""
        weight = weights[f"{name}.weight"]
        bias = weights.get(f"{name}.bias")
        product = functional.linear(rows.to(weight.dtype), weight).float()
        return product if bias is None else product + bias


def naming_loss(
    rows: torch.Tensor, places: torch.Tensor, words: torch.Tensor, embed: torch.Tensor
) -> torch.Tensor:
    """How far rows are from the words for what they show: cross entropy over all tokens, summed.

    rows: fp32 [R, D], of all pictures; places: int64 [K]; words: int64 [K, W], alike likely.
    embed: fp32 [V, D], which learns nothing from this.
    """
    likeness = rows[places] @ embed.detach().T * _LIKENESS
    logs = likeness.log_softmax(-1).gather(1, words)
    return -logs.mean(1).sum()


def _turn(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Pairs are (i, i + head_dim / 2). x: [N, heads, P, head_dim]."""
    cos, sin = angles
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
