"""API keys in Redis: made once, shown once, found by their digest."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rorqual_runtime.logs import get_logger
from rorqual_runtime.redis_clients import RedisClient

log = get_logger(__name__)

KEY_PREFIX = "sk-rq-"
_TABLE = "rorqual:v1:{api_keys}:by_digest"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_SECRET_BYTES = 32


class Scope(StrEnum):
    """What a key opens."""

    INFERENCE = "inference"
    """Everything below /v1, and the tokenizer"""
    METRICS = "metrics"
    """/metrics"""
    CONSOLE = "console"
    """What the console shows of the fleet, its requests and their traces"""


class KeyLimits(BaseModel):
    """How much a key may use, over all gateways together; None = no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)
    """Prompt and answer, cached or not"""
    max_concurrent: int | None = Field(None, ge=1)

    @property
    def are_set(self) -> bool:
        return any(value is not None for value in self.model_dump().values())


NO_LIMITS = KeyLimits()


class ApiKey(BaseModel):
    """What is stored of a key: everything but the key."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str = Field(pattern=_NAME)
    name: str = Field(min_length=1, max_length=100)
    """For people"""
    tenant: str = Field(pattern=_NAME)
    """Keys of one tenant share cached prefixes and a fair share of the fleet"""
    scopes: frozenset[Scope] = Field(min_length=1)
    limits: KeyLimits = NO_LIMITS
    created_unix_s: float = Field(ge=0)
    expires_unix_s: float | None = None

    def is_expired(self, now_unix_s: float) -> bool:
        return self.expires_unix_s is not None and now_unix_s >= self.expires_unix_s


def new_secret(key_id: str) -> str:
    """A key that nobody guesses: 256 random bits, so that a plain digest of it is safe to keep."""
    return f"{KEY_PREFIX}{key_id}-{secrets.token_urlsafe(_SECRET_BYTES)}"


def new_key_id() -> str:
    """A public name for a key that its owner did not name."""
    return secrets.token_hex(6)


class KeyStore:
    """The table of keys. Every method raises redis.RedisError when Redis can't be asked."""

    def __init__(self, redis: RedisClient) -> None:
        self._redis = redis

    async def add(self, key: ApiKey, secret: str) -> None:
        """Store a key under its secret's digest."""
        await self._redis.hset(_TABLE, _digest(secret), key.model_dump_json())  # type: ignore[misc]

    async def find(self, secret: str) -> ApiKey | None:
        """The key whose secret this is; expired ones too."""
        stored = await self._redis.hget(_TABLE, _digest(secret))  # type: ignore[misc]
        return _read(stored) if stored is not None else None

    async def all(self) -> Sequence[ApiKey]:
        """Every key, the oldest first."""
        keys = [key for _, key in await self._entries()]
        return sorted(keys, key=lambda key: key.created_unix_s)

    async def revoke(self, key_id: str) -> int:
        """Forget keys by their id; returns how many there were."""
        digests = [digest for digest, key in await self._entries() if key.id == key_id]
        if digests:
            await self._redis.hdel(_TABLE, *digests)  # type: ignore[misc]
        return len(digests)

    async def _entries(self) -> list[tuple[str, ApiKey]]:
        stored = await self._redis.hgetall(_TABLE)  # type: ignore[misc]
        keys = [(_text(digest), _read(value)) for digest, value in stored.items()]
        return [(digest, key) for digest, key in keys if key is not None]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _read(stored: bytes | str) -> ApiKey | None:
    """A record that can't be read opens nothing."""
    try:
        return ApiKey.model_validate_json(stored)
    except ValidationError as error:
        log.error("an API key's record is damaged", extra={"num_problems": error.error_count()})
        return None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
