"""Settings of the scaler: the only reader of its environment."""

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class ScalerSettings(BaseSettings):
    """Bounds, patience and the driver. By default both services stay at one instance."""

    model_config = SettingsConfigDict(env_prefix="RORQUAL_SCALER_", frozen=True)

    driver: Literal["local", "none"] = Field(
        "local", description="local: start and stop processes here; none: only decide"
    )
    min_prefill: int = Field(1, ge=0, description="prefill instances at least")
    max_prefill: int = Field(1, ge=0, description="prefill instances at most")
    min_decode: int = Field(1, ge=0, description="decode instances at least")
    max_decode: int = Field(1, ge=0, description="decode instances at most")
    interval_s: float = Field(1.0, gt=0, description="time between decisions")
    window_s: float = Field(10.0, gt=0, description="time over which arrivals are averaged")
    up_utilisation: float = Field(
        0.8, gt=0, le=1, description="share of capacity in use before one more is wanted"
    )
    down_utilisation: float = Field(
        0.6, gt=0, le=1, description="share of the remaining capacity in use after one is removed"
    )
    up_after_s: float = Field(3.0, ge=0, description="how long load must last before adding")
    down_after_s: float = Field(60.0, ge=0, description="how long it must be gone before removing")
    missing_after_s: float = Field(
        60.0, ge=0, description="how long fewer than the minimum are left to whoever starts them"
    )
    backlog_clear_s: float = Field(
        20.0, gt=0, description="time in which waiting work should be done"
    )
    default_prefill_tokens_per_s: float = Field(
        1000.0, gt=0, description="capacity of a prefill instance until one has been measured"
    )
    start_deadline_s: float = Field(
        120.0, gt=0, description="an instance that has not reported by then is stopped again"
    )
    drain_s: float = Field(
        40.0, ge=0, description="longest drain of an instance that is taken away"
    )
    kill_after_s: float = Field(
        5.0, ge=0, description="time between SIGTERM and SIGKILL for an instance that stays"
    )
    restart_pause_s: float = Field(
        1.0, ge=0, description="pause before a start after one that failed; doubles up to a minute"
    )
    silent_s: float = Field(2.0, gt=0, description="an instance silent for longer is gone")
    prefill_module: str = Field("rorqual_prefill", description="module run as a prefill instance")
    decode_module: str = Field("rorqual_decode", description="module run as a decode instance")

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.min_prefill > self.max_prefill or self.min_decode > self.max_decode:
            raise ValueError("min_prefill <= max_prefill and min_decode <= max_decode")
        if self.down_utilisation > self.up_utilisation:
            raise ValueError("down_utilisation <= up_utilisation, else counts would swing")
        return self
