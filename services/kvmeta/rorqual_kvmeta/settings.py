"""Settings of a kvmeta instance: the only reader of its environment."""

from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from rorqual_policy import AGENT_LIFETIME_S, CHAT_LIFETIME_S
from rorqual_policy.quotas import Quotas

from rorqual_kvmeta.records import Lifetimes, tag
from rorqual_kvmeta.upkeep import UpkeepParams

DAY_S = 86_400.0


class KvmetaSettings(BaseSettings):
    """Lifetimes of blocks and leases, and bounds of everything asked of Redis."""

    model_config = SettingsConfigDict(env_prefix="RORQUAL_KVMETA_", frozen=True)

    chat_lifetime_s: float = Field(
        CHAT_LIFETIME_S,
        gt=0,
        description="how long a block of chat traffic is known after its last use",
    )
    agent_lifetime_s: float = Field(
        AGENT_LIFETIME_S,
        gt=0,
        description="how long a block of agent traffic is known after its last use",
    )
    expired_memory_s: float = Field(
        DAY_S, ge=0, description="how much longer an expired block is told from an unknown one"
    )
    touch_share: float = Field(
        0.05, ge=0, lt=1, description="a use is written down only if it adds this share of lifetime"
    )
    lease_s: float = Field(60.0, gt=0, description="how long a match holds its blocks")
    tend_interval_s: float = Field(5.0, gt=0, description="time between looks at leases and quotas")
    sweep_interval_s: float = Field(
        60.0, gt=0, description="time between removals of blocks that expired long ago"
    )
    quota_bytes: int = Field(
        0, ge=0, description="blocks a tenant may have stored; the oldest go first; 0 = any"
    )
    tenant_quota_bytes: dict[str, int] = Field(
        {}, description='other quotas for single tenants, as JSON: {"name": bytes}'
    )
    redis_timeout_s: float = Field(
        0.1, gt=0, description="longest wait for Redis on a match; later means no match"
    )
    redis_write_timeout_s: float = Field(
        1.0, gt=0, description="longest wait for Redis when registering or forgetting"
    )
    redis_probe_interval_s: float = Field(
        0.25, gt=0, description="time between tries to reach a Redis that is away"
    )
    redis_connections: int = Field(16, gt=0, description="connections to Redis at most")
    max_pending_blocks: int = Field(
        65_536, gt=0, description="registrations kept while Redis is away; the oldest go first"
    )
    heartbeat_s: float = Field(
        1.0, gt=0, description="time between messages that tell others how far events have come"
    )
    silent_s: float = Field(
        5.0, gt=0, description="an instance not heard for this long may have told too little"
    )
    resync_pause_s: float = Field(
        1.0, ge=0, description="least time between two readings of all that Redis knows"
    )
    max_windows: int = Field(
        65_536, gt=0, description="window states whose holders are known; the oldest go first"
    )
    max_first_blocks: int = Field(
        65_536, gt=0, description="beginnings of prompts told apart by namespace, for counts"
    )

    @field_validator("tenant_quota_bytes")
    @classmethod
    def _quotas_are_positive(cls, value: dict[str, int]) -> dict[str, int]:
        if any(quota < 0 for quota in value.values()):
            raise ValueError("quotas are 0 (= any) or more bytes")
        return value

    @model_validator(mode="after")
    def _silence_is_longer_than_heartbeats(self) -> Self:
        if self.silent_s <= 2 * self.heartbeat_s:
            raise ValueError("silent_s must be more than two heartbeats, or all seem silent")
        return self

    def lifetimes(self) -> Lifetimes:
        return Lifetimes(chat_s=self.chat_lifetime_s, agent_s=self.agent_lifetime_s)

    def upkeep_params(self) -> UpkeepParams:
        by_tag = {tag(name): quota for name, quota in self.tenant_quota_bytes.items()}
        return UpkeepParams(
            expired_memory_s=self.expired_memory_s,
            lock_s=3 * max(self.tend_interval_s, self.sweep_interval_s),
            timeout_s=self.redis_write_timeout_s,
            quotas=Quotas(default_bytes=self.quota_bytes, tenant_bytes=by_tag),
        )
