"""What a model directory says about its vision tower, read without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUNNABLE = ("DeepseekV41ForConditionalGeneration",)
"""Architectures whose tower this build runs."""

_TOWER_KEYS = ("vision_config", "vision_tower", "mm_vision_tower")


class ModelDescriptionError(Exception):
    """The model directory can't be read; the text names the file."""


@dataclass(frozen=True)
class ModelDescription:
    """The little that a request for images needs to know."""

    model_id: str
    tower_type: str | None
    """Model type of the vision tower; None when the model sees no images."""
    can_run: bool = False
    """This build runs the tower."""


def read_description(model_dir: Path) -> ModelDescription:
    """Raises: ModelDescriptionError when config.json is missing or not a JSON object."""
    config = _read_object(model_dir / "config.json")
    manifest_path = model_dir / "rorqual.json"
    manifest = _read_object(manifest_path) if manifest_path.is_file() else {}
    model_id = manifest.get("id") or model_dir.resolve().name
    tower_type = _tower_type(config)
    architectures = config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    is_known = any(name in RUNNABLE for name in names)
    return ModelDescription(str(model_id), tower_type, can_run=bool(tower_type) and is_known)


def _tower_type(config: dict[str, Any]) -> str | None:
    for key in _TOWER_KEYS:
        tower = config.get(key)
        if isinstance(tower, dict) and tower:
            return str(tower.get("model_type", key))
        if isinstance(tower, str) and tower:
            return tower
    return None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelDescriptionError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise ModelDescriptionError(f"{path}: not a JSON object")
    return content
