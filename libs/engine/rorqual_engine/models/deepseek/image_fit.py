"""A decoded image made to the size that the tower sees."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from rorqual_engine.models.deepseek.image_size import ImagePlan

_GREY = (127, 127, 127)


def fit_image(image: Image.Image, plan: ImagePlan) -> npt.NDArray[np.uint8]:
    """uint8 [plan.height, plan.width, 3]: bicubic, proportions kept and padded in the middle.

    What is transparent is dropped, as the model was trained.
    """
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    size = (plan.width, plan.height)
    if plan.is_stretched:
        fitted = rgb.resize(size, Image.Resampling.BICUBIC)
    else:
        fitted = ImageOps.pad(rgb, size, Image.Resampling.BICUBIC, color=_GREY)
    return np.asarray(fitted, dtype=np.uint8)
