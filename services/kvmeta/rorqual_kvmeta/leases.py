"""Leases on matched blocks, in Redis so that any kvmeta instance can release them."""

import secrets
from dataclasses import dataclass

from redis.asyncio import Redis
from rorqual_runtime.clock import Clock

LEASES_NAME = b"rorqual:v1:leases"


@dataclass(frozen=True, slots=True)
class Lease:
    """A promise to keep blocks until it is released or has expired."""

    lease_id: str
    expires_unix_s: float


class Leases:
    """All leases of the fleet, in one sorted set by expiry."""

    def __init__(self, lease_s: float, clock: Clock) -> None:
        self._lease_s = lease_s
        self._clock = clock

    def new(self) -> Lease:
        """A lease that `add` makes known."""
        return Lease(secrets.token_hex(8), self._clock.now_unix_s() + self._lease_s)

    async def add(self, redis: Redis, lease: Lease) -> None:
        await redis.zadd(LEASES_NAME, {lease.lease_id: lease.expires_unix_s})

    async def release(self, redis: Redis, lease_id: str) -> bool:
        """Whether it was there; an unknown one is fine."""
        return bool(await redis.zrem(LEASES_NAME, lease_id))

    async def sweep(self, redis: Redis) -> int:
        """Drop the expired ones; how many are left."""
        await redis.zremrangebyscore(LEASES_NAME, "-inf", self._clock.now_unix_s())
        return int(await redis.zcard(LEASES_NAME))
