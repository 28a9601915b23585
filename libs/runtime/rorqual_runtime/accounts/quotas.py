"""Quotas of keys, counted in Redis by one script a request: every gateway sees the same count.

A minute's allowance is a bucket that refills steadily and holds one minute. A request takes one of
the requests at once; its tokens are known only when it ends and are taken then, so a bucket of
tokens can fall below empty, and the key waits until it is above again. Requests under way are
leases that end by themselves if a gateway dies. Redis's own clock counts, so gateways need not
agree on the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rorqual_runtime.accounts.keys import KeyLimits
from rorqual_runtime.redis_clients import RedisClient

_READ_BUCKET = """
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local function level(key, allowance)
  local kept = redis.call('HMGET', key, 'level', 'at')
  if not kept[1] then return allowance end
  local filled = tonumber(kept[1]) + math.max(0, now - tonumber(kept[2])) * allowance / 60
  return math.min(allowance, filled)
end
local function keep(key, left, allowance)
  redis.call('HSET', key, 'level', left, 'at', now)
  redis.call('EXPIRE', key, math.ceil((allowance - left) * 60 / allowance) + 60)
end
"""
_TAKE = (
    _READ_BUCKET
    + """
local requests, tokens, concurrent = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local left_requests, left_tokens, wait, reason = 0, 0, 0, ''
if concurrent > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
  if redis.call('ZCARD', KEYS[3]) >= concurrent then wait, reason = 1, 'max_concurrent' end
end
if tokens > 0 then
  left_tokens = level(KEYS[2], tokens)
  if left_tokens < 1 then
    wait, reason = math.max(wait, (1 - left_tokens) * 60 / tokens), 'tokens_per_minute'
  end
end
if requests > 0 then
  left_requests = level(KEYS[1], requests)
  if left_requests < 1 then
    wait, reason = math.max(wait, (1 - left_requests) * 60 / requests), 'requests_per_minute'
  end
end
if reason == '' then
  if requests > 0 then
    left_requests = left_requests - 1
    keep(KEYS[1], left_requests, requests)
  end
  if concurrent > 0 then
    redis.call('ZADD', KEYS[3], now + tonumber(ARGV[5]), ARGV[4])
    redis.call('EXPIRE', KEYS[3], math.ceil(tonumber(ARGV[5])) + 60)
  end
end
return {reason, tostring(wait), tostring(left_requests), tostring(left_tokens)}
"""
)
_SETTLE = (
    _READ_BUCKET
    + """
redis.call('ZREM', KEYS[3], ARGV[3])
local tokens, used = tonumber(ARGV[1]), tonumber(ARGV[2])
if tokens > 0 and used > 0 then keep(KEYS[2], level(KEYS[2], tokens) - used, tokens) end
return 1
"""
)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one limit still allows. reset_s: until it is whole again."""

    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class QuotaState:
    """A key's quotas at one request. refused_by: the limit's name, "" when it may go on."""

    refused_by: str
    retry_after_s: float
    requests: Allowance | None
    tokens: Allowance | None


class Quotas:
    """Takes from and gives back to keys' quotas. Raises redis.RedisError when Redis is away."""

    def __init__(self, redis: RedisClient) -> None:
        self._take: Any = redis.register_script(_TAKE)
        self._settle: Any = redis.register_script(_SETTLE)

    async def take(
        self, key_id: str, limits: KeyLimits, request_id: str, *, lease_s: float
    ) -> QuotaState:
        """One request wants to begin. lease_s: when it counts as ended, whatever happens."""
        reply = await self._take(
            keys=_places(key_id),
            args=[
                limits.requests_per_minute or 0,
                limits.tokens_per_minute or 0,
                limits.max_concurrent or 0,
                request_id,
                lease_s,
            ],
        )
        reason, wait_s, requests, tokens = (_text(value) for value in reply)
        return QuotaState(
            refused_by=reason,
            retry_after_s=float(wait_s),
            requests=_allowance(limits.requests_per_minute, float(requests)),
            tokens=_allowance(limits.tokens_per_minute, float(tokens)),
        )

    async def settle(
        self, key_id: str, limits: KeyLimits, request_id: str, *, num_tokens: int
    ) -> None:
        """A request that was let in has ended, having used so many tokens."""
        await self._settle(
            keys=_places(key_id), args=[limits.tokens_per_minute or 0, num_tokens, request_id]
        )


def _places(key_id: str) -> list[str]:
    """Redis keys of one API key's counts; the braces keep them on one node of a Cluster."""
    base = f"rorqual:v1:{{quota:{key_id}}}"
    return [f"{base}:requests", f"{base}:tokens", f"{base}:under_way"]


def _allowance(limit: int | None, left: float) -> Allowance | None:
    if limit is None:
        return None
    return Allowance(limit, max(0, math.floor(left)), (limit - left) * 60 / limit)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
