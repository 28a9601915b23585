"""The tower against a dense reading of its formulas, and its independence of the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from rorqual_engine.errors import CorruptModel, UnsupportedModel
from rorqual_engine.models.deepseek.vision import VisionTower, patches_of
from rorqual_engine.models.deepseek.vision_config import TowerConfig
from torch.nn import functional

from tests.support.random_tower import FIELDS, HIDDEN, random_tower_tensors, write_random_tower

CPU = torch.device("cpu")


def picture(seed: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_tower(tmp_path_factory.mktemp("tower"))


def load(directory: Path, dtype: torch.dtype) -> VisionTower:
    return VisionTower.load(directory, FIELDS, CPU, dtype)


def dense_rows(image: np.ndarray) -> Iterator[torch.Tensor]:
    """Row after row of one image, patch by patch and head by head, in fp64."""
    weights = {name: tensor.double() for name, tensor in random_tower_tensors(FIELDS).items()}
    height, width = image.shape[0] // 14, image.shape[1] // 14

    def apply(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weights[f"{name}.weight"]

    def turned(x: torch.Tensor) -> torch.Tensor:
        """Of one head [P, 16]: pairs (i, i + 8); four frequencies of rows, four of columns."""
        out = x.clone()
        for place in range(len(x)):
            for pair in range(8):
                at = place // width if pair < 4 else place % width
                angle = at * 10000.0 ** (-(pair % 4) / 4)
                a, b = x[place, pair], x[place, pair + 8]
                out[place, pair] = a * math.cos(angle) - b * math.sin(angle)
                out[place, pair + 8] = b * math.cos(angle) + a * math.sin(angle)
        return out

    pieces = []
    for row in range(height):
        for column in range(width):
            patch = image[row * 14 : row * 14 + 14, column * 14 : column * 14 + 14]
            pieces.append(torch.tensor(patch).double().permute(2, 0, 1).flatten() / 127.5 - 1)
    x = apply("vision.patch_embed.proj", torch.stack(pieces))
    for layer in range(2):
        name = f"vision.blocks.{layer}"
        q, k, v = apply(f"{name}.attn.wqkv", norm(f"{name}.norm1", x)).split(32, dim=1)
        heads = []
        for head in (slice(0, 16), slice(16, 32)):
            scores = turned(q[:, head]) @ turned(k[:, head]).T / 4
            heads.append(scores.softmax(-1) @ v[:, head])
        x = x + apply(f"{name}.attn.wo", torch.cat(heads, dim=1))
        gate, up = (norm(f"{name}.norm2", x) @ weights[f"{name}.mlp.w1.weight"].T).split(48, 1)
        x = x + (functional.silu(gate) * up) @ weights[f"{name}.mlp.w2.weight"].T
    x = norm("vision.norm", x).view(height, width, 32)
    yield weights["image_start"]
    for row in range(0, height, 3):
        for column in range(0, width, 3):
            cell = torch.zeros(32, 3, 3, dtype=torch.float64)
            part = x[row : row + 3, column : column + 3].permute(2, 0, 1)
            cell[:, : part.shape[1], : part.shape[2]] = part
            yield apply("aligner.w2", functional.gelu(apply("aligner.w1", cell.flatten())))
        yield weights["image_newline"]
    yield weights["image_end"]


def test_rows_are_those_of_the_formulas(directory: Path) -> None:
    image = picture(1, 5 * 14, 7 * 14)
    (rows,) = load(directory, torch.float32).encode([image])
    expected = torch.stack(list(dense_rows(image)))
    assert rows.shape == (2 * (3 + 1) + 2, HIDDEN)
    assert (rows.double() - expected).abs().max() < 2e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_image_does_not_depend_on_its_batch(directory: Path, dtype: torch.dtype) -> None:
    tower = load(directory, dtype)
    sizes = [(84, 84), (14, 14), (420, 294), (84, 210), (14, 868)]
    images = [picture(seed, *size) for seed, size in enumerate(sizes)]
    alone = [tower.encode([image])[0] for image in images]
    together = tower.encode(images)
    reversed_ = tower.encode(images[::-1])[::-1]
    for one, other, third in zip(alone, together, reversed_, strict=True):
        assert one.dtype == dtype
        assert (
            torch.equal(one, other) if dtype == torch.bfloat16 else (one - other).abs().max() < 1e-5
        )
        assert torch.equal(other, third) if dtype == torch.bfloat16 else True
    assert tower.encode([]) == []


def test_patches_are_bf16_exact_before_they_are_rounded(directory: Path) -> None:
    image = np.zeros((14, 28, 3), dtype=np.uint8)
    image[:, 14:] = 255
    values = patches_of(image, 14)
    assert values[0].unique().tolist() == [-1.0]
    assert values[1].unique().tolist() == [1.0]


def test_what_is_no_image_is_refused(directory: Path) -> None:
    tower = load(directory, torch.float32)
    with pytest.raises(ValueError, match="no whole patches"):
        tower.encode([picture(0, 15, 14)])


def test_a_wrong_checkpoint_is_named(directory: Path) -> None:
    wrong = {**FIELDS, "vision_config": {**FIELDS["vision_config"], "intermediate_size": 64}}
    with pytest.raises(CorruptModel, match=r"mlp\.w1\.weight"):
        VisionTower.load(directory, wrong, CPU, torch.float32)
    with pytest.raises(CorruptModel, match=r"vision_config\.num_hidden_layers is missing"):
        TowerConfig.from_hf({"hidden_size": 8, "vision_config": {"hidden_size": 32}})
    with pytest.raises(UnsupportedModel, match="empty"):
        TowerConfig.from_hf({"hidden_size": 8, "vision_config": {}})
