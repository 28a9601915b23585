"""Leases on matched blocks, in Redis so that whoever removes blocks anywhere spares them."""

import re
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

_ID = re.compile("[0-9a-f]{16}")

_ADD = """
if redis.call('SET', KEYS[2], ARGV[2], 'NX', 'PX', ARGV[4]) then
  redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
end
"""
"""id, what it holds, expiry, lifetime. Nothing where it was released already."""

_RELEASE = """
local was_there = redis.call('ZREM', KEYS[1], ARGV[1])
if was_there == 1 then
  redis.call('DEL', KEYS[2])
else
  redis.call('SET', KEYS[2], '', 'PX', ARGV[2])
end
return was_there
"""
"""id, lifetime. A match is answered before its lease is added, and whoever releases it may be
quicker than that, by way of another instance: then the lease must not come to be any more."""

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
        self._lifetime_ms = max(1, int(lease_s * 1000))
        self._clock = clock
        self._owed: deque[str] = deque(maxlen=MAX_OWED)

    def new(self, wanted_id: str = "") -> Lease:
        """A lease that `add` makes known, of that id if it is one, else of any."""
        lease_id = wanted_id if _ID.fullmatch(wanted_id) else secrets.token_hex(8)
        return Lease(lease_id, self._clock.now_unix_s() + self._lease_s)

    async def add(self, redis: RedisClient, lease: Lease, keys: Keys) -> None:
        """Hold these blocks; not if the lease has been released meanwhile."""
        heads = np.ascontiguousarray(keys[:, 0]).tobytes()
        args: Any = (lease.lease_id, heads, repr(lease.expires_unix_s), self._lifetime_ms)
        await redis.eval(_ADD, 2, LEASES_NAME, _name(lease.lease_id), *args)  # type: ignore[misc]

    async def release(self, redis: RedisClient, lease_id: str) -> bool:
        """Whether it was there; an unknown one is fine."""
        args: Any = (lease_id, self._lifetime_ms)
        was_there = await redis.eval(_RELEASE, 2, LEASES_NAME, _name(lease_id), *args)  # type: ignore[misc]
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
