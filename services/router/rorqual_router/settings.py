"""Settings of a router: the only reader of its environment."""

import json
import math
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from rorqual_policy.prefill_policy import STEP_LIMIT_S


class RouterSettings(BaseSettings):
    """Bounds of queueing and waiting, and how placements are weighed."""

    model_config = SettingsConfigDict(
        env_prefix="RORQUAL_ROUTER_", frozen=True, populate_by_name=True, protected_namespaces=()
    )

    pool: str = Field("default", description="pool whose prefill queue jobs go to")
    max_queued_jobs: int = Field(
        1024, gt=0, description="jobs in the prefill queue, those under way included, at most"
    )
    queue_replicas: int = Field(
        1, ge=1, le=5, description="NATS servers that keep the prefill queue, of a cluster"
    )
    max_tenant_jobs: int = Field(
        768, gt=0, description="jobs of one tenant that wait for prefill at a time, at most"
    )
    prefill_policy: Literal["rorqual", "deepseek"] = Field(
        "rorqual",
        validation_alias="RORQUAL_PREFILL_POLICY",
        description="how waiting prompts are shared among prefill instances; theirs, by name",
    )
    step_limit_s: float = Field(
        STEP_LIMIT_S,
        gt=0,
        validation_alias="RORQUAL_PREFILL_STEP_LIMIT_S",
        description="longest prefill step, as the prefill instances have it",
    )
    max_line_jobs: int = Field(
        2048, gt=0, description="jobs kept in order here; what is beyond stays in the queue"
    )
    fair_quantum_s: float = Field(
        0.25, gt=0, description="prefill work that a tenant is granted with each of its turns"
    )
    tenant_weights: dict[str, float] = Field(
        default_factory=dict,
        description='JSON {"tenant": weight} of fair shares in prefill; 1 where not named',
    )
    fleet_wait_s: float = Field(
        10.0, ge=0, description="longest wait for a first prefill and decode instance to be alive"
    )
    match_timeout_s: float = Field(
        0.150, gt=0, description="longest wait for the prefix match; later means no match"
    )
    match_absent_s: float = Field(
        0.010, ge=0, description="longest wait for a kvmeta instance to appear"
    )
    exact_prefixes: bool = Field(
        False, description="no bounded replay, and no stored block that was computed behind one"
    )
    compile_timeout_s: float = Field(30.0, gt=0, description="longest wait for a grammar")
    compile_absent_s: float = Field(
        3.0, ge=0, description="longest wait for a grammar instance to appear"
    )
    vision_timeout_s: float = Field(30.0, gt=0, description="longest wait for one image")
    vision_absent_s: float = Field(
        3.0, ge=0, description="longest wait for a vision instance to appear"
    )
    max_images_at_once: int = Field(32, ge=1, description="images of a request encoded at once")
    publish_timeout_s: float = Field(30.0, gt=0, description="longest wait for the work queue")
    depth_interval_s: float = Field(
        0.25, gt=0, description="time between readings of the queue's depth"
    )
    silent_s: float = Field(2.0, gt=0, description="an instance silent for longer is gone")
    settle_s: float = Field(
        1.0, ge=0, description="how long a placement counts on top of the load reports"
    )
    step_base_s: float = Field(0.010, ge=0, description="decode step time without requests")
    step_per_request_s: float = Field(20e-6, gt=0, description="decode step time a request adds")
    step_per_kv_token_s: float = Field(
        20e-6 / 65536, ge=0, description="decode step time a context token adds"
    )
    reserved_new_tokens: int = Field(
        1024,
        ge=0,
        description="output tokens a decode instance reserves pages for, at most: as "
        "RORQUAL_DECODE_GROWTH_TOKENS",
    )
    model_dir: Path = Field(
        Path(".rorqual/models/smollm2-135m-instruct"),
        validation_alias="RORQUAL_MODEL_DIR",
        description="model directory; its manifest names the fingerprint until an engine reports",
    )

    @field_validator("tenant_weights")
    @classmethod
    def _weights_are_positive(cls, value: dict[str, float]) -> dict[str, float]:
        if any(not 0 < weight < math.inf for weight in value.values()):
            raise ValueError("weights are positive numbers")
        return value

    def manifest_fingerprint(self) -> str:
        """Fingerprint in the model directory's manifest; empty without a readable one."""
        try:
            manifest = json.loads((self.model_dir / "rorqual.json").read_text())
        except (OSError, ValueError):
            return ""
        return str(manifest.get("fingerprint", "")) if isinstance(manifest, dict) else ""
