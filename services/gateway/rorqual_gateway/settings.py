"""Settings of the gateway, read once at start."""

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from rorqual_runtime.patience import AGAIN_S

from rorqual_gateway.cors import parse_cors_origins
from rorqual_gateway.keys import parse_api_keys


class GatewaySettings(BaseSettings):
    """What an operator can change; a wrong value stops the start."""

    model_config = SettingsConfigDict(env_prefix="RORQUAL_GATEWAY_", frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 = any free one")
    tls_cert: Path | None = Field(
        None, description="certificate chain in PEM; with it the gateway speaks HTTPS only"
    )
    tls_key: Path | None = Field(None, description="private key of tls_cert in PEM, no passphrase")
    api_keys: str = Field(
        "",
        repr=False,
        description="accepted keys, comma separated, each `key` or `name:key`; empty = no keys",
    )
    stored_keys: bool = Field(
        False, description="also accept keys made by `rorqual keys`; then every caller needs one"
    )
    metrics_need_key: bool = Field(
        False, description="whether /metrics needs a key, of the scope `metrics`"
    )
    key_fresh_s: float = Field(
        5.0, ge=0, description="how long a looked-up key counts, so how long a revoked one goes on"
    )
    key_stale_s: float = Field(
        300.0, ge=0, description="how long a known key goes on while Redis is away"
    )
    redis_timeout_s: float = Field(0.5, gt=0, description="longest wait for Redis")
    redis_probe_interval_s: float = Field(
        0.5, gt=0, description="time between looks for a Redis that was away"
    )
    redis_connections: int = Field(16, gt=0, description="connections to Redis at most")
    cors_origins: str = Field(
        "",
        description="origins whose pages may call the API, comma separated, * = any; empty = none",
    )
    max_body_bytes: int = Field(32 << 20, gt=0, description="largest request body")
    body_timeout_s: float = Field(60.0, gt=0, description="time a client has to send its body")
    max_connections: int = Field(10_000, ge=1, description="open connections, idle ones included")
    max_concurrent_requests: int = Field(1024, ge=1, description="requests under way at once")
    request_timeout_s: float = Field(600.0, gt=0, description="deadline of a whole request")
    queue_timeout_s: float = Field(300.0, gt=0, description="wait for the first token before 408")
    encode_timeout_s: float = Field(60.0, gt=0, description="wait for recipe")
    submit_timeout_s: float = Field(60.0, gt=0, description="wait for router")
    ask_again_s: float = Field(
        AGAIN_S,
        gt=0,
        description="silence of recipe or router before others are asked, too",
    )
    absent_timeout_s: float = Field(3.0, gt=0, description="wait for an absent service before 503")
    keepalive_s: float = Field(15.0, gt=0, description="idle time before an SSE comment is sent")
    max_token_gap_s: float = Field(
        60.0, gt=0, description="silence after the first token before a stream is given up"
    )
    silence_probe_s: float = Field(
        3.0, gt=0, description="silence after which recipe is asked for what was missed"
    )
    begun_silence_probe_s: float = Field(
        0.5, gt=0, description="the same in the midst of an answer, if that is sooner"
    )
    lost_after_s: float = Field(
        15.0, gt=0, description="time without any answer from recipe before a request is lost"
    )
    take_over_after_s: float = Field(
        1.5, gt=0, description="time recipe can't be reached before another takes an answer over"
    )
    take_over_absent_s: float = Field(
        0.25, gt=0, description="the same once nobody of its name is on the bus, if that is sooner"
    )
    take_over_timeout_s: float = Field(
        3.0, gt=0, description="wait for one instance to take an answer over; then another is asked"
    )
    max_kept_body_bytes: int = Field(
        256 << 20,
        ge=0,
        description="bodies of all requests under way, kept so that another recipe can take over",
    )
    kept_answer_s: float = Field(
        600.0, gt=0, description="how long an answer can be had again under its Idempotency-Key"
    )
    max_kept_answer_bytes: int = Field(
        1 << 20, ge=0, description="largest answer kept whole; one that was gone on with is not"
    )
    max_answer_bytes: int = Field(
        64 << 20, gt=0, description="largest answer without streaming, or burst of a stream"
    )
    max_stream_buffer_bytes: int = Field(
        1 << 20, gt=0, description="events kept for a client that is slow_client_s behind"
    )
    slow_client_s: float = Field(
        10.0, ge=0, description="time behind after which a full buffer gets a client cut off"
    )
    required_services: str = Field(
        "recipe,router,prefill,decode,kvmeta",
        description="services that must be up for /ready, comma separated",
    )
    stale_report_s: float = Field(
        3.0, gt=0, description="age at which a load report no longer counts for /ready"
    )

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: set both or none")
        return self

    @model_validator(mode="after")
    def _closed_metrics_have_keys(self) -> Self:
        if self.metrics_need_key and not (self.api_keys or self.stored_keys):
            raise ValueError(
                "metrics_need_key: no key can be asked for without api_keys or stored_keys"
            )
        return self

    @field_validator("api_keys")
    @classmethod
    def _keys_can_be_read(cls, value: str) -> str:
        parse_api_keys(value)
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins_can_be_read(cls, value: str) -> str:
        parse_cors_origins(value)
        return value

    @property
    def required_service_names(self) -> tuple[str, ...]:
        """Names in `required_services`."""
        return tuple(name.strip() for name in self.required_services.split(",") if name.strip())
