"""Settings of a router: the only reader of its environment."""

import json
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class RouterSettings(BaseSettings):
    """Bounds of queueing and waiting, and how placements are weighed."""

    model_config = SettingsConfigDict(
        env_prefix="RORQUAL_ROUTER_", frozen=True, populate_by_name=True, protected_namespaces=()
    )

    pool: str = Field("default", description="pool whose prefill queue jobs go to")
    max_queued_jobs: int = Field(
        1024, gt=0, description="jobs in the prefill queue, those under way included, at most"
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
        1 << 30, ge=0, description="output tokens a decode instance reserves pages for, at most"
    )
    model_dir: Path = Field(
        Path(".rorqual/models/smollm2-135m-instruct"),
        validation_alias="RORQUAL_MODEL_DIR",
        description="model directory; its manifest names the fingerprint until an engine reports",
    )

    def manifest_fingerprint(self) -> str:
        """Fingerprint in the model directory's manifest; empty without a readable one."""
        try:
            manifest = json.loads((self.model_dir / "rorqual.json").read_text())
        except (OSError, ValueError):
            return ""
        return str(manifest.get("fingerprint", "")) if isinstance(manifest, dict) else ""
