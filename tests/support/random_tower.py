"""A random vision tower on disk: the smallest model directory that sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rorqual_engine.models.deepseek.vision_config import TowerConfig, tower_shapes
from safetensors.torch import save_file

TINY_VISION: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "patch_size": 14,
    "downsample": 3,
    "min_pixels": 7056,
    "max_tokens": 64,
}
HIDDEN = 24
FIELDS: dict[str, Any] = {"hidden_size": HIDDEN, "vision_config": TINY_VISION}


def random_tower_tensors(fields: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Every tensor of the tower, fp32, with values of an ordinary size."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tower_shapes(TowerConfig.from_hf(fields)):
        values = torch.randn(shape, generator=generator)
        scale = 0.2 if len(shape) == 1 else shape[-1] ** -0.5
        tensors[name] = values * scale + (1 if "norm" in name else 0)
    return tensors


def write_random_tower(directory: Path, *, seed: int = 0, **fields: Any) -> Path:
    """config.json and the weights of a tower; `fields` adds to config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {**FIELDS, **fields}
    save_file(random_tower_tensors(config, seed), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory
