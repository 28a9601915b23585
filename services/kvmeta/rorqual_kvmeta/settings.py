"""Settings of a kvmeta instance: the only reader of its environment."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict
from rorqual_policy import AGENT_LIFETIME_S, CHAT_LIFETIME_S

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
    sweep_interval_s: float = Field(
        5.0, gt=0, description="time between removals of expired leases"
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
