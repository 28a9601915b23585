"""Settings of a prefill instance: the only reader of its environment."""

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict
from rorqual_policy.buckets import Bucket
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
        description="length buckets this instance pulls from, comma separated",
    )
    step_tokens: int = Field(512, ge=128, description="most tokens one step computes")
    step_target_s: float = Field(
        0.4, gt=0, description="step time that shrinks a step below step_tokens on a slow machine"
    )
    calibrate_s: float = Field(
        1.0,
        ge=0,
        description="time to measure steps at a start without a calibration file; 0 = never",
    )
    max_queued_tokens: int = Field(
        4096, gt=0, description="pulled, uncomputed tokens at which pulling pauses"
    )
    max_active: int = Field(64, gt=0, description="jobs held at a time, handovers included")
    max_image_rows: int = Field(
        65_536, gt=0, description="rows of images held for prompts that are being computed"
    )
    pull_wait_s: float = Field(1.0, gt=0, description="longest one pull waits for a job")
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
