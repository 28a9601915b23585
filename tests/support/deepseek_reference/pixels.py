"""From an image's pixels to the ones that the tower sees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Canvas:
    """Height and width in pixels, multiples of the patch, and how many tokens they cost.

    stretched: the image fills it, because it was wider than allowed; else proportions are kept.
    """

    height: int
    width: int
    num_tokens: int
    stretched: bool


def canvas(height: int, width: int, config: dict[str, Any]) -> Canvas:
    """The size to which an image is brought; config: vision_config."""
    patch, most = config.get("patch_size", 14), config.get("max_tokens", 1024)
    cell = patch * config.get("downsample", 3)
    widest = config.get("max_wh_ratio") or math.inf
    h, w = float(height), min(float(width), height * widest)
    least = config.get("min_pixels", 544 * 544)
    if h * w < least:
        factor = math.sqrt(least / (h * w))
        h, w = max(math.floor(h * factor), 1), max(math.floor(w * factor), 1)
    size = tuple(math.ceil(side / patch) * patch for side in (h, w))
    if _tokens(*size, cell) > most:
        size = _shrunk(h, w, patch, cell, most)
    return Canvas(*size, _tokens(*size, cell), width >= height * widest)


def _tokens(h: int, w: int, cell: int) -> int:
    return math.ceil(h / cell) * (math.ceil(w / cell) + 1) + 2


def _shrunk(h: float, w: float, patch: int, cell: int, most: int) -> tuple[int, int]:
    aspect = h / w
    columns = math.sqrt((most - 2) / aspect + 0.25) - 0.5
    rows = aspect * columns
    if columns < 1:
        return (most - 2) // 2 * cell, cell
    if rows < 1:
        return cell, (most - 3) * cell
    factor = min(math.floor(columns) * cell / w, math.floor(rows) * cell / h)
    return math.floor(h * factor / patch) * patch, math.floor(w * factor / patch) * patch


def prepare(image: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """[3, H, W] between -1 and 1, from uint8 RGB [h, w, 3]: resized within the canvas, padded."""
    height, width = image.shape[:2]
    goal = canvas(height, width, config)
    h, w = goal.height, goal.width
    if goal.stretched:
        height, width = h, w
    if width / height > w / h:
        h = round(height / width * w)
    elif width / height < w / h:
        w = round(width / height * h)
    resized = _resize(_resize(image, w, 1), h, 0)
    padded = torch.full((goal.height, goal.width, 3), 127, dtype=torch.uint8)
    top, left = round((goal.height - h) * 0.5), round((goal.width - w) * 0.5)
    padded[top : top + h, left : left + w] = resized
    return (padded.permute(2, 0, 1).double() / 255 - 0.5) / 0.5


def _resize(image: torch.Tensor, size: int, axis: int) -> torch.Tensor:
    """One axis by a bicubic kernel that widens when it shrinks; rounded to whole values."""
    old = image.shape[axis]
    if old == size:
        return image
    scale = old / size
    stretch = max(scale, 1.0)
    weights = torch.zeros(size, old, dtype=torch.float64)
    for i in range(size):
        center = (i + 0.5) * scale
        first = max(int(center - 2 * stretch + 0.5), 0)
        last = min(int(center + 2 * stretch + 0.5), old)
        for j in range(first, last):
            weights[i, j] = _cubic((j + 0.5 - center) / stretch)
    weights /= weights.sum(1, keepdim=True)
    moved = image.double().movedim(axis, 0)
    out = (weights @ moved.flatten(1)).unflatten(1, moved.shape[1:])
    return (out + 0.5).floor().clamp(0, 255).to(torch.uint8).movedim(0, axis)


def _cubic(x: float, a: float = -0.5) -> float:
    x = abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0
