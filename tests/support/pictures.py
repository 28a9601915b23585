"""Small pictures as files."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def picture(seed: int, width: int = 100, height: int = 80) -> Image.Image:
    """Soft colours that differ by seed."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def picture_file(
    seed: int = 0, width: int = 100, height: int = 80, *, kind: str = "PNG", mode: str = "RGB"
) -> bytes:
    """A picture's file."""
    out = io.BytesIO()
    picture(seed, width, height).convert(mode).save(out, kind)
    return out.getvalue()
