"""Settings of the scaler: the only reader of its environment."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

SERVICES = ("prefill", "decode", "vision", "recipe")
"""What scales. Of the others one or two carry any fleet."""
_COUNT_THEMSELVES = ("vision", "recipe")
"""Whose demand only their own instances report."""


class ScalerSettings(BaseSettings):
    """Bounds, patience and the driver. By default every service stays at one instance."""

    model_config = SettingsConfigDict(env_prefix="RORQUAL_SCALER_", frozen=True)

    driver: Literal["local", "compose", "kubernetes", "none"] = Field(
        "local",
        description="local: processes here; compose: docker compose; kubernetes: Deployments; "
        "none: a dry run, decisions are only published",
    )
    min_prefill: int = Field(1, ge=0, description="prefill instances at least")
    max_prefill: int = Field(1, ge=0, description="prefill instances at most")
    spare_prefill: int = Field(0, ge=0, description="prefill instances above what is needed")
    min_decode: int = Field(1, ge=0, description="decode instances at least")
    max_decode: int = Field(1, ge=0, description="decode instances at most")
    spare_decode: int = Field(0, ge=0, description="decode instances above what is needed")
    min_vision: int = Field(1, ge=0, description="vision instances at least")
    max_vision: int = Field(1, ge=0, description="vision instances at most")
    spare_vision: int = Field(0, ge=0, description="vision instances above what is needed")
    min_recipe: int = Field(1, ge=0, description="recipe instances at least")
    max_recipe: int = Field(1, ge=0, description="recipe instances at most")
    spare_recipe: int = Field(0, ge=0, description="recipe instances above what is needed")
    redundancy: float = Field(
        0.0, ge=0, description="share of the needed instances that run on top, and may be lost"
    )
    interval_s: float = Field(1.0, gt=0, description="time between decisions")
    window_s: float = Field(10.0, gt=0, description="time over which arrivals are averaged")
    up_utilisation: float = Field(
        0.85, gt=0, le=1, description="share of capacity in use before one more is wanted"
    )
    down_utilisation: float = Field(
        0.75,
        gt=0,
        le=1,
        description="share of the remaining capacity in use after some are removed",
    )
    up_after_s: float = Field(3.0, ge=0, description="how long load must last before adding")
    down_after_s: float = Field(
        300.0, ge=0, description="fewer must have done for all of the load of so long"
    )
    down_pause_s: float = Field(30.0, ge=0, description="between one removal and the next")
    down_share: float = Field(0.1, gt=0, le=1, description="share that is removed at once")
    missing_after_s: float = Field(
        60.0, ge=0, description="how long fewer than the minimum are left to whoever starts them"
    )
    backlog_clear_s: float = Field(
        20.0, gt=0, description="time in which waiting work should be done"
    )
    decode_step_s: float = Field(
        0.0, ge=0, description="longest good decode step; 0: an instance is full at max_running"
    )
    default_prefill_tokens_per_s: float = Field(
        1000.0, gt=0, description="capacity of a prefill instance until it is known"
    )
    default_recipe_tokens_per_s: float = Field(
        50_000.0, gt=0, description="capacity of a recipe instance while it has little to do"
    )
    start_deadline_s: float = Field(
        120.0, gt=0, description="a started instance that is silent counts for so long"
    )
    drain_s: float = Field(
        90.0, ge=0, description="longest drain of an instance that is taken away"
    )
    kill_after_s: float = Field(
        5.0, ge=0, description="local: time between SIGTERM and SIGKILL for one that stays"
    )
    restart_pause_s: float = Field(
        1.0, ge=0, description="pause after a failed start; doubles up to a minute"
    )
    silent_s: float = Field(2.0, gt=0, description="an instance silent for longer is gone")
    modules: dict[str, str] = Field(
        default_factory=dict, description="local: module by service; else rorqual_<service>"
    )
    poll_s: float = Field(
        5.0, gt=0, description="compose, kubernetes: time between looks at the counts"
    )
    call_timeout_s: float = Field(
        60.0, gt=0, description="compose, kubernetes: longest wait for one call"
    )
    compose_command: str = Field("docker compose", description="or docker-compose")
    compose_file: Path = Field(Path("compose.yaml"), description="of the deployment")
    compose_project: str = Field("", description="its name, if not that of the file's folder")
    kubernetes_namespace: str = Field("rorqual", description="of the Deployments")

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        for service in SERVICES:
            least, most = self.bounds(service)[:2]
            if least > most:
                raise ValueError(f"need min_{service} <= max_{service}, got {least} and {most}")
        for service in _COUNT_THEMSELVES:
            least, most, _ = self.bounds(service)
            if least == 0 < most:
                raise ValueError(
                    f"need min_{service} >= 1, got 0 with max_{service} {most}: "
                    "only its own instances report its demand, so it would never come back"
                )
        if self.down_utilisation > self.up_utilisation:
            raise ValueError("down_utilisation <= up_utilisation, else counts would swing")
        if unknown := self.modules.keys() - set(SERVICES):
            raise ValueError(f"modules of no such service: {sorted(unknown)}")
        return self

    def is_elastic(self, service: str) -> bool:
        """Whether its count may change at all."""
        least, most, _ = self.bounds(service)
        return least < most

    def bounds(self, service: str) -> tuple[int, int, int]:
        """Least, most and spare instances."""
        least, most, spare = (
            getattr(self, f"{name}_{service}") for name in ("min", "max", "spare")
        )
        return least, most, spare
