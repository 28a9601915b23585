"""Settings of a prefill instance: the only reader of its environment."""

from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict
from rorqual_policy.buckets import Bucket
from rorqual_policy.prefill_policy import STEP_LIMIT_S
from rorqual_runtime.blockstore.settings import StoreSettings
from rorqual_runtime.settings import ModelSettings


class PrefillSettings(StoreSettings, ModelSettings):
    """What one prefill instance pulls, and how much it computes at a time."""

    model_config = SettingsConfigDict(env_prefix="RORQUAL_PREFILL_")

    redundant_experts: int = Field(
        4, ge=0, description="experts that each rank holds beyond its share, without a placement"
    )
    num_pages: int = Field(512, gt=0, description="KV pages of 128 tokens, touched lazily")
    pool: str = Field("default", description="pool whose prefill queue this instance serves")
    buckets: Annotated[tuple[Bucket, ...], NoDecode] = Field(
        tuple(Bucket),
        min_length=1,
        description="length buckets this instance takes prompts of, comma separated",
    )
    step_tokens: int = Field(512, ge=128, description="most tokens one step computes")
    step_limit_s: float = Field(
        STEP_LIMIT_S, gt=0, description="longest step; under a light load they are shorter"
    )
    policy: Literal["rorqual", "deepseek"] = Field(
        "rorqual", description="how steps are filled; the routers' policy, by the same name"
    )
    calibrate_s: float = Field(
        1.0,
        ge=0,
        description="time to measure steps at a start without a calibration file; 0 = never",
    )
    max_active: int = Field(64, gt=0, description="jobs held at a time, handovers included")
    max_image_rows: int = Field(
        65_536, gt=0, description="rows of images held for prompts that are being computed"
    )
    place_timeout_s: float = Field(2.0, gt=0, description="longest wait for a placement")
    handover_timeout_s: float = Field(10.0, gt=0, description="longest wait for a decode's answer")
    default_deadline_s: float = Field(
        600.0, gt=0, description="bound of a job that came without a deadline"
    )
    host_blocks_bytes: int = Field(
        256 << 20, gt=0, description="host memory for stored blocks on their way into pages"
    )
    window_keep_s: float = Field(
        180.0, gt=0, description="how long the window state behind a prompt's blocks is kept"
    )
    window_keep_bytes: int = Field(
        256 << 20, ge=0, description="memory for kept window states; the least valuable leave"
    )

    @field_validator("buckets", mode="before")
    @classmethod
    def _buckets_are_separated(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(name.strip() for name in value.split(",") if name.strip())
