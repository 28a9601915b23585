"""Image files to pixels, within bounds that are checked before anything is unpacked."""

from __future__ import annotations

import io
import struct
import warnings
from dataclasses import dataclass

import numpy as np
from PIL import Image, UnidentifiedImageError

from rorqual_vision.problems import BadImage

FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_NAMES = "a png, jpeg, gif or webp image"
_SCAN_MARK = b"\xff\xda"
_DEEP_MODES = ("I", "I;16", "I;16B", "I;16L")


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """An image outside is refused by its header.

    max_scans: passes of a progressive jpeg, each of which goes over the whole picture.
    """

    max_edge: int = 8192
    max_pixels: int = 40_000_000
    max_scans: int = 100


def decode(data: bytes, limits: DecodeLimits) -> Image.Image:
    """The first frame, unpacked, RGB. Raises: BadImage."""
    if not data:
        raise BadImage("the image is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            _check_size(image.size, limits)
            if image.format == "JPEG" and data.count(_SCAN_MARK) > limits.max_scans:
                raise BadImage("the image is a jpeg with too many scans")
            image.load()
            return _as_rgb(image)
    except UnidentifiedImageError:
        raise BadImage(f"the data is not {_NAMES}") from None
    except Image.DecompressionBombError:
        raise BadImage(f"the image has more than {limits.max_pixels} pixels") from None
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error) as error:
        raise BadImage(f"the image can't be read: {_first_line(error)}") from error


def _check_size(size: tuple[int, int], limits: DecodeLimits) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise BadImage("the image is empty")
    if max(size) > limits.max_edge:
        reason = f"no edge may be longer than {limits.max_edge} pixels"
        raise BadImage(f"the image is {width} x {height} pixels; {reason}")
    if width * height > limits.max_pixels:
        raise BadImage(
            f"the image is {width} x {height} pixels; at most {limits.max_pixels} are taken"
        )


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _DEEP_MODES:
        values = np.asarray(image).astype(np.int64)
        return Image.fromarray((values.clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
