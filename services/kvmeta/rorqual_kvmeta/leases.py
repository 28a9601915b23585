"""Leases on matched blocks, in Redis so that whoever removes blocks anywhere spares them."""

import secrets
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rorqual_runtime.clock import Clock
from rorqual_runtime.redis_clients import RedisClient

from rorqual_kvmeta.records import Keys

LEASES_NAME = b"rorqual:v2:{leases}"
"""Sorted set of lease ids by expiry. The braces keep it and all leases in one slot of a Cluster."""

MAX_OWED = 10_000
"""Releases that Redis has yet to hear of; of more the oldest leases expire by themselves."""

U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Lease:
    """A promise to keep blocks until it is released or has expired."""

    lease_id: str
    expires_unix_s: float


class Leases:
    """All leases of the fleet. Of each block a lease names the first half of the key."""

    def __init__(self, lease_s: float, clock: Clock) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._owed: deque[str] = deque(maxlen=MAX_OWED)

    def new(self) -> Lease:
        """A lease that `add` makes known."""
        return Lease(secrets.token_hex(8), self._clock.now_unix_s() + self._lease_s)

    async def add(self, redis: RedisClient, lease: Lease, keys: Keys) -> None:
        """Hold these blocks."""
        heads = np.ascontiguousarray(keys[:, 0]).tobytes()
        lifetime_ms = max(1, int(self._lease_s * 1000))
        async with redis.pipeline(transaction=False) as pipeline:
            pipeline.set(_name(lease.lease_id), heads, px=lifetime_ms)
            pipeline.zadd(LEASES_NAME, {lease.lease_id: lease.expires_unix_s})
            await pipeline.execute()

    async def release(self, redis: RedisClient, lease_id: str) -> bool:
        """Whether it was there; an unknown one is fine."""
        async with redis.pipeline(transaction=False) as pipeline:
            pipeline.zrem(LEASES_NAME, lease_id)
            pipeline.delete(_name(lease_id))
            was_there, _ = await pipeline.execute()
        return bool(was_there)

    def owe_release(self, lease_id: str) -> None:
        """Redis could not be told."""
        self._owed.append(lease_id)

    async def release_owed(self, redis: RedisClient) -> None:
        """Redis is back: it is told what was released meanwhile."""
        while self._owed:
            await self.release(redis, self._owed[0])
            self._owed.popleft()

    async def sweep(self, redis: RedisClient) -> int:
        """Drop the expired ones; how many are left."""
        await redis.zremrangebyscore(LEASES_NAME, "-inf", self._clock.now_unix_s())
        return int(await redis.zcard(LEASES_NAME))

    async def held(self, redis: RedisClient) -> U64:
        """First halves of the keys of all blocks that somebody holds."""
        now_unix_s = self._clock.now_unix_s()
        ids: Any = await redis.zrangebyscore(LEASES_NAME, now_unix_s, "+inf")
        if not ids:
            return np.zeros(0, np.uint64)
        values: Any = await redis.mget([_name(lease_id) for lease_id in ids])
        heads = b"".join(value for value in values if value and len(value) % 8 == 0)
        return np.unique(np.frombuffer(heads, "<u8"))


def _name(lease_id: str | bytes) -> bytes:
    return LEASES_NAME + b":" + (lease_id if isinstance(lease_id, bytes) else lease_id.encode())
