"""How large an image gets before the tower sees it, and how many tokens it takes. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rorqual_engine.models.deepseek.fields import Fields

LOW_DETAIL_SHARE = 0.2
"""Of max_tokens; about 200 where the model takes 1024."""


@dataclass(frozen=True)
class ImageRules:
    """What vision_config says about sizes. Keys: README.md."""

    patch: int = 14
    downsample: int = 3
    min_pixels: int = 295_936
    max_tokens: int = 1024
    max_wh_ratio: float | None = None
    """Width over height at most; a wider image is narrowed."""

    @property
    def cell(self) -> int:
        """Pixels of a token, each way."""
        return self.patch * self.downsample

    @classmethod
    def from_config(cls, vision: Mapping[str, Any]) -> ImageRules:
        """Raises: CorruptModel naming the key."""
        fields = Fields({**vision}, "vision_config.")
        ratio = vision.get("max_wh_ratio")
        return cls(
            patch=fields.whole("patch_size", cls.patch),
            downsample=fields.whole(first_key(vision, "downsample_ratio", "downsample"), 3),
            min_pixels=fields.whole("min_pixels", cls.min_pixels, least=0),
            max_tokens=fields.whole(
                first_key(vision, "max_image_tokens", "max_tokens"), cls.max_tokens, least=4
            ),
            max_wh_ratio=None if ratio is None else fields.number("max_wh_ratio"),
        )

    def for_detail(self, detail: str) -> ImageRules:
        """The rules for a client's wish: `low` bounds the tokens, all else changes nothing."""
        if detail != "low":
            return self
        max_tokens = max(4, int(self.max_tokens * LOW_DETAIL_SHARE))
        return replace(self, max_tokens=max_tokens)


@dataclass(frozen=True)
class ImagePlan:
    """Size in pixels, both multiples of the patch, and the grid of tokens."""

    height: int
    width: int
    num_rows: int
    num_columns: int
    is_stretched: bool = False
    """Fitted without keeping its proportions, instead of padded."""

    @property
    def num_tokens(self) -> int:
        """Start, rows of columns and a newline, end."""
        return num_image_tokens(self.num_rows, self.num_columns)


def num_image_tokens(num_rows: int, num_columns: int) -> int:
    """Tokens of a grid: a start, each row with a newline behind it, and an end."""
    return num_rows * (num_columns + 1) + 2


def plan_image(width: int, height: int, rules: ImageRules) -> ImagePlan:
    """What becomes of an image of this size. Raises: ValueError for an empty one."""
    if width < 1 or height < 1:
        raise ValueError(f"an image needs width and height, got {width} x {height}")
    ratio = rules.max_wh_ratio
    is_stretched = ratio is not None and width >= ratio * height
    wide = float(width) if ratio is None else min(float(width), height * ratio)
    high = float(height)
    if wide * high < rules.min_pixels:
        scale = math.sqrt(rules.min_pixels / (wide * high))
        wide, high = float(int(wide * scale)), float(int(high * scale))
        wide, high = max(wide, 1.0), max(high, 1.0)
    size = _round_up(high, rules.patch), _round_up(wide, rules.patch)
    if num_image_tokens(*_grid(size, rules)) > rules.max_tokens:
        size = _largest(high, wide, rules)
    return ImagePlan(*size, *_grid(size, rules), is_stretched)


def _grid(size: tuple[int, int], rules: ImageRules) -> tuple[int, int]:
    height, width = size
    return (
        math.ceil(height // rules.patch / rules.downsample),
        math.ceil(width // rules.patch / rules.downsample),
    )


def _largest(height: float, width: float, rules: ImageRules) -> tuple[int, int]:
    """The largest size of about these proportions whose tokens are not too many."""
    cell, limit = rules.cell, rules.max_tokens
    ratio = height / width
    max_columns = math.sqrt((limit - 2) / ratio + 0.25) - 0.5
    max_rows = max_columns * ratio
    if max_columns < 1:
        return (limit - 2) // 2 * cell, cell
    if max_rows < 1:
        return cell, (limit - 3) * cell
    scale = min(math.floor(max_columns) * cell / width, math.floor(max_rows) * cell / height)
    return _fitted(height * scale, rules.patch), _fitted(width * scale, rules.patch)


def _fitted(side: float, patch: int) -> int:
    return max(1, math.floor(side / patch)) * patch


def _round_up(side: float, patch: int) -> int:
    return max(1, math.ceil(side / patch)) * patch


def first_key(config: Mapping[str, Any], *names: str) -> str:
    """The name that the config uses of several for one thing; the first when it has none."""
    return next((name for name in names if name in config), names[0])
