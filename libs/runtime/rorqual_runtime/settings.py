"""Settings every process shares, read once from the environment (`RORQUAL_*`)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from rorqual_runtime import subjects

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOG_LEVELS = ("debug", "info", "warning", "error")


def _boot_id() -> str:
    """Equal for all processes of one running kernel; empty where the kernel has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class RuntimeSettings(BaseSettings):
    """What the service shell needs to know."""

    model_config = SettingsConfigDict(env_prefix="RORQUAL_", frozen=True, extra="ignore")

    nats_url: str = Field(
        "nats://127.0.0.1:4222", repr=False, description="NATS servers, comma separated"
    )
    connect_timeout_s: float = Field(
        30.0, gt=0, description="how long a start waits for the broker"
    )
    outage_s: float = Field(
        60.0, ge=0, description="how long a broker may be away before waiting requests fail"
    )
    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        repr=False,
        description="Redis of keys, quotas, block places and stored responses; "
        "its login comes from secrets_dir",
    )
    home: Path = Field(Path(".rorqual"), description="run directory: logs traces run store models")
    secrets_dir: Path | None = Field(
        None,
        description="directory with the files that prove who this process is; "
        "unset: servers that ask nobody",
    )
    instance_id: str | None = Field(
        None, description="name of this process in the fleet; default <service>-<random>"
    )
    host_id: str | None = Field(
        default_factory=_boot_id,
        description="equal on processes that share /dev/shm; default: the kernel's boot id",
    )
    advertise_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address others reach this process at; `hostname`: that of this machine",
    )
    otlp_endpoint: str | None = Field(
        None, description="OTLP gRPC endpoint for spans; unset: JSON lines under home/traces"
    )
    trace_sample_ratio: float = Field(1.0, ge=0, le=1, description="share of traces recorded")
    log_level: str = Field("info", description="debug, info, warning or error")
    decision_log: bool = Field(
        False, description="log the input of every policy decision, for `rorqual replay-log`"
    )
    drain_s: float = Field(30.0, ge=0, description="grace for work under way after SIGTERM")
    shm_bytes: int = Field(512 << 20, gt=0, description="size of the tensor arena")
    max_inline_bytes: int = Field(
        49_152, gt=0, description="larger payloads travel by the tensor plane"
    )
    metrics_host: str = Field("127.0.0.1", min_length=1, description="address of /metrics")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="port of /metrics; 0 = any free one; unset: not served"
    )
    load_report_interval_s: float = Field(0.2, gt=0, description="time between load reports")

    @field_validator("instance_id")
    @classmethod
    def _instance_id_is_token(cls, value: str | None) -> str | None:
        if value is not None and not subjects.is_token(value):
            raise ValueError("letters, digits, dash and underscore only, 1 to 128 of them")
        return value

    @field_validator("advertise_host")
    @classmethod
    def _host_name_is_looked_up(cls, value: str) -> str:
        """A container's own name leads to it, also where there are several of a service."""
        return socket.gethostname() if value == "hostname" else value

    @field_validator("log_level")
    @classmethod
    def _log_level_is_known(cls, value: str) -> str:
        if value.lower() not in _LOG_LEVELS:
            raise ValueError(f"one of {', '.join(_LOG_LEVELS)}")
        return value.lower()

    @field_validator("nats_url")
    @classmethod
    def _nats_url_is_url(cls, value: str) -> str:
        for server in value.split(","):
            if not server.strip().startswith(("nats://", "tls://", "ws://", "wss://")):
                raise ValueError("URLs that start with nats://, tls://, ws:// or wss://")
        return value

    @property
    def nats_servers(self) -> list[str]:
        """The broker URLs, one an item."""
        return [server.strip() for server in self.nats_url.split(",")]


class ModelSettings(BaseSettings):
    """What a service that runs a language model is told about it; its own settings add a prefix."""

    model_config = SettingsConfigDict(frozen=True, populate_by_name=True, protected_namespaces=())

    model_dir: Path = Field(
        Path(".rorqual/models/smollm2-135m-instruct"),
        validation_alias="RORQUAL_MODEL_DIR",
        description="Hugging Face directory of the model to serve",
    )
    device: str = Field("cpu", description="torch device the model runs on")
    kernels: str = Field(
        "auto", description="implementations instead of the best, such as twin,run_experts=triton"
    )
    dtype: str = Field("bfloat16", description="dtype of weights and KV")
    keeps_quantized: bool = Field(
        False,
        validation_alias="RORQUAL_KEEPS_QUANTIZED",
        description="matrices stored in 8 or 4 bits stay so in memory: less of it, slower steps",
    )
    drafts: bool = Field(
        True,
        validation_alias="RORQUAL_DRAFTS",
        description="the draft module of a checkpoint that has one is loaded and kept up with "
        "every row: for prefill and decode alike",
    )
    expert_ranks: int = Field(
        1,
        ge=1,
        validation_alias="RORQUAL_EXPERT_RANKS",
        description="processes that share the model's experts, this one included",
    )
    expert_placement: Path | None = Field(
        None,
        validation_alias="RORQUAL_EXPERT_PLACEMENT",
        description='JSON {"<layer>": [[experts of rank 0], ...], ...} to start with',
    )
    redundant_experts: int = Field(
        0,
        ge=0,
        description="experts that each rank holds beyond its share, without a placement",
    )
    expert_nodes: int = Field(
        1,
        ge=1,
        validation_alias="RORQUAL_EXPERT_NODES",
        description="groups of consecutive ranks that share no expert, such as those of one socket",
    )
    expert_interval_s: float = Field(
        60.0,
        ge=0,
        validation_alias="RORQUAL_EXPERT_INTERVAL_S",
        description="time between two looks at which experts should change ranks; 0 = none do",
    )
    expert_moves: int = Field(
        8,
        ge=1,
        validation_alias="RORQUAL_EXPERT_MOVES",
        description="most experts of a layer that change places at one look",
    )
    expert_split: Literal["counts", "recent"] = Field(
        "counts",
        validation_alias="RORQUAL_EXPERT_SPLIT",
        description="rows go to the copies of an expert by the step's counts, or by recent steps'",
    )
    num_threads: int = Field(0, ge=0, description="compute threads; 0 = one a core")


def variables_of(settings: type[BaseSettings]) -> set[str]:
    """Every environment variable that a settings class reads."""
    prefix = str(settings.model_config.get("env_prefix", ""))
    names = set()
    for name, field in settings.model_fields.items():
        alias = field.validation_alias
        names.add(alias if isinstance(alias, str) else f"{prefix}{name}".upper())
    return names


def known_variables() -> set[str]:
    """What the settings classes imported so far read."""
    return set().union(*(variables_of(settings) for settings in _subclasses(BaseSettings)))


def describe_settings_error(error: ValidationError) -> str:
    """One line that names each environment variable with a wrong or missing value."""
    owner = next((c for c in _subclasses(BaseSettings) if c.__name__ == error.title), None)
    prefix = str(owner.model_config.get("env_prefix", "")) if owner else ""
    known = owner.model_fields if owner else {}
    parts = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        path = [part for part in problem["loc"] if isinstance(part, str)]
        name = "__".join(path)
        variable = f"{prefix}{name}".upper() if path and path[0] in known else name
        said = problem["msg"].removeprefix("Value error, ")
        parts.append(f"{variable or error.title}: {said}")
    return "wrong settings: " + "; ".join(parts)


def _subclasses(cls: type[BaseSettings]) -> Iterator[type[BaseSettings]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)
