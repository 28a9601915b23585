"""Settings of the vision service (`RORQUAL_VISION_*`)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class VisionSettings(BaseSettings):
    """Which model's images this instance encodes."""

    model_config = SettingsConfigDict(
        env_prefix="RORQUAL_VISION_", frozen=True, extra="ignore", populate_by_name=True
    )

    model_dir: Path = Field(
        Path(".rorqual/models/smollm2-135m-instruct"),
        validation_alias="RORQUAL_MODEL_DIR",
        description="model directory whose vision tower is served",
    )
