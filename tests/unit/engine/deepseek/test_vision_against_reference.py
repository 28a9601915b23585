"""Sizes, pixels, the tower and its place in a prompt, as an independent reading has them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rorqual_engine.batch import ImageRows, SequenceChunk
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.image_fit import fit_image
from rorqual_engine.models.deepseek.image_size import ImageRules, plan_image
from rorqual_engine.models.deepseek.vision import VisionTower
from rorqual_engine.prepare.random_v41 import TINY_V41, random_tensors, write_random_v41

from tests.support.deepseek_reference import Rule, TextReference
from tests.support.deepseek_reference.pixels import canvas, prepare
from tests.support.deepseek_reference.vision import VisionReference

VISION: dict[str, Any] = TINY_V41["vision_config"]
RULES: list[dict[str, Any]] = [
    {},
    {"min_pixels": 7056, "max_tokens": 64},
    {"max_wh_ratio": 2.5},
    {"max_tokens": 5},
]
SIZES = [(200, 100), (61, 97), (30, 300), (333, 222)]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("v41")
    write_random_v41(directory)
    return directory


@pytest.fixture(scope="module")
def tower(model_dir: Path) -> VisionTower:
    return VisionTower.load(model_dir, TINY_V41, torch.device("cpu"), torch.float32)


def _picture(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def _fitted(width: int, height: int) -> np.ndarray:
    plan = plan_image(width, height, ImageRules.from_config(VISION))
    return np.array(fit_image(Image.fromarray(_picture(width, height)), plan))


def _values(pixels: np.ndarray) -> torch.Tensor:
    return (torch.from_numpy(pixels).permute(2, 0, 1).double() / 255 - 0.5) / 0.5


@pytest.mark.parametrize("rules", RULES)
def test_sizes(rules: dict[str, Any]) -> None:
    rng = random.Random(0)
    engine = ImageRules.from_config({"patch_size": 14, "downsample": 3, **rules})
    for _ in range(500):
        width, height = (int(2 ** rng.uniform(0, 13)) for _ in range(2))
        found, expected = plan_image(width, height, engine), canvas(height, width, rules)
        assert (found.height, found.width) == (expected.height, expected.width), (width, height)
        assert found.num_tokens == expected.num_tokens
        assert found.is_stretched == expected.stretched


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_pixels(width: int, height: int) -> None:
    """To a level of 255, which is how far two roundings of a bicubic sum can be apart."""
    found = _values(_fitted(width, height))
    expected = prepare(torch.from_numpy(_picture(width, height)), VISION)
    difference = (found - expected).abs() * 127.5
    assert difference.max() < 1.01
    assert (difference > 0.01).double().mean() < 1e-3


def test_rows_of_a_batch_of_images(tower: VisionTower) -> None:
    images = [_fitted(*size) for size in SIZES]
    reference = VisionReference(TINY_V41, random_tensors(TINY_V41, 0))
    for found, image in zip(tower.encode(images), images, strict=True):
        expected = reference.embeddings(_values(image))
        assert found.shape == expected.shape
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-4)


def test_a_prompt_with_an_image(tower: VisionTower, model_dir: Path) -> None:
    """From pixels to logits, with the tail rule: both ways by themselves."""
    image = _fitted(200, 100)
    rows = tower.encode([image])[0]
    ids = [*range(10, 100), *[TINY_V41["image_token_id"]] * len(rows), *range(200, 250)]
    places = np.arange(90, 90 + len(rows))
    model = load_model(model_dir, dtype="float32")
    cache = model.new_cache(2)
    with cache.allocate(2) as lease:
        chunk = SequenceChunk(
            ids,
            0,
            lease.pages,
            True,
            lease.window,
            defers_late=True,
            embeddings=ImageRows(places, rows),
        )
        found = model.forward([chunk], cache)[0]
    tensors = random_tensors(TINY_V41, 0)
    expected_rows = VisionReference(TINY_V41, tensors).embeddings(_values(image))
    trace = TextReference(TINY_V41, tensors)(
        ids, Rule.tail(len(ids), 128), dict(zip(places.tolist(), expected_rows, strict=True))
    )
    torch.testing.assert_close(found.double(), trace.logits[-1], rtol=0, atol=1e-4)
