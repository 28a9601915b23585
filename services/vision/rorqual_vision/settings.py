"""Settings of the vision service (`RORQUAL_VISION_*`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rorqual_vision.addresses import parse_networks


class VisionSettings(BaseSettings):
    """Which model's images this instance encodes, and what it takes."""

    model_config = SettingsConfigDict(
        env_prefix="RORQUAL_VISION_", frozen=True, extra="ignore", populate_by_name=True
    )

    model_dir: Path = Field(
        Path(".rorqual/models/smollm2-135m-instruct"),
        validation_alias="RORQUAL_MODEL_DIR",
        description="model directory whose vision tower is served",
    )
    device: str = Field("cpu", description="torch device the tower runs on")
    dtype: str = Field("bfloat16", description="dtype of weights and embeddings")
    num_threads: int = Field(0, ge=0, description="compute threads; 0 = one a core")
    allowed_networks: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="networks images may be fetched from though not public, comma separated"
    )
    fetch_timeout_s: float = Field(15.0, gt=0, description="longest fetch, redirects included")
    max_fetches: int = Field(
        64, ge=1, description="images fetched at a time; others wait for 3 s, then get 503"
    )
    max_redirects: int = Field(3, ge=0, description="redirects followed, each checked again")
    max_image_bytes: int = Field(20 << 20, gt=0, description="largest image file")
    max_edge: int = Field(8192, gt=0, description="longest edge of an image in pixels")
    max_pixels: int = Field(40_000_000, gt=0, description="most pixels of an image")
    decode_threads: int = Field(2, ge=1, description="images unpacked at a time")
    max_waiting_images: int = Field(
        256, ge=1, description="images being prepared before new ones get 503"
    )
    pixels_lease_s: float = Field(
        45.0, gt=0, description="how long a prepared image waits to be encoded"
    )
    embeddings_lease_s: float = Field(120.0, gt=0, description="how long embeddings can be read")
    cache_bytes: int = Field(256 << 20, ge=0, description="embeddings kept, by image content")
    step_patches: int = Field(
        9216, gt=0, description="work of one step, in patches; a larger image runs alone"
    )
    max_queued_patches: int = Field(
        1 << 20, gt=0, description="patches waiting before new images get 503"
    )

    @field_validator("allowed_networks", mode="before")
    @classmethod
    def _networks_are_separated(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(name.strip() for name in value.split(",") if name.strip())

    @field_validator("allowed_networks")
    @classmethod
    def _networks_are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_networks(value)
        return value
