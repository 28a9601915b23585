"""What happens to blocks that nobody asks for: they expire, are forgotten, or make room.

Every instance looks through its own index. One at a time, which holds a lock in Redis, also removes
from Redis and enforces quotas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from rorqual_policy.quotas import Quotas, bytes_to_free
from rorqual_runtime.clock import Clock
from rorqual_runtime.logs import get_logger
from rorqual_runtime.redis_clients import RedisClient
from rorqual_runtime.redis_link import RedisLink

from rorqual_kvmeta import truth
from rorqual_kvmeta.index import BlockIndex
from rorqual_kvmeta.leases import Leases
from rorqual_kvmeta.records import RECORD, Keys, Records, State, record_keys

LOCK_NAME = b"rorqual:v2:upkeep"
BATCH = 1024

log = get_logger(__name__)

U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class UpkeepParams:
    """expired_memory_s: how long a gone block is told from an unknown one; lock_s: how long the
    one who cleans up is waited for; timeout_s: for one write to Redis."""

    expired_memory_s: float
    lock_s: float
    timeout_s: float
    quotas: Quotas


class Upkeep:
    """Expiry, removal and quotas. Lives on the event loop, a slice of the index at a time."""

    def __init__(
        self,
        instance_id: str,
        index: BlockIndex,
        link: RedisLink,
        leases: Leases,
        clock: Clock,
        forget: Callable[[Keys, State], Awaitable[int]],
        params: UpkeepParams,
    ) -> None:
        """forget: makes blocks gone here, in Redis, and for all instances; how many were live."""
        self._instance_id = instance_id
        self._index = index
        self._link = link
        self._leases = leases
        self._clock = clock
        self._forget = forget
        self._params = params
        self.num_leases = 0
        self.num_quota_evicted = 0

    async def tend(self) -> None:
        """Expired leases and exceeded quotas; cheap while there are none. Raises: StoreAway."""
        self.num_leases = await self._link.call(self._leases.sweep)
        quotas = self._params.quotas
        if not quotas.bound_anyone:
            return
        over = bytes_to_free(self._index.owners.live_bytes(), quotas)
        if over and await self._leads():
            held = await self._link.call(self._leases.held)
            for tenant, num_bytes in over.items():
                await self._free(tenant, num_bytes, held)

    async def sweep(self) -> None:
        """Look through the whole index once. Raises: StoreAway."""
        leads = await self._leads()
        held = await self._link.call(self._leases.held)
        memory_s = self._params.expired_memory_s
        for part in self._index.parts():
            now_unix_s = self._clock.now_unix_s()
            removed = self._index.sweep(part, now_unix_s, memory_s, held)
            if leads:
                await self._drop(removed, now_unix_s - memory_s)
            await asyncio.sleep(0)

    async def _drop(self, keys: Keys, ended_unix_s: float) -> None:
        for start in range(0, len(keys), BATCH):
            part = keys[start : start + BATCH]
            await self._link.call(
                partial(truth.drop_ended, keys=part, ended_unix_s=ended_unix_s),
                timeout_s=self._params.timeout_s,
            )

    async def _free(self, tenant: int, num_bytes: int, held: U64) -> None:
        """Make a tenant's least recently used blocks go, until it has given up so much."""
        victims = np.zeros(0, RECORD)
        owners = self._index.owners.of_tenant(tenant)
        for part in self._index.parts():
            found = self._index.live_of(part, owners)
            found = found[~np.isin(found["hi"], held) & ~np.isin(found["hi"], victims["hi"])]
            victims = first_to_go(np.concatenate([victims, found]), num_bytes)
            await asyncio.sleep(0)
        for keys in _batches(victims):
            self.num_quota_evicted += await self._forget(keys, State.EVICTED)
        log.info("a tenant was over its quota", extra={"num_blocks": len(victims)})

    async def _leads(self) -> bool:
        """Whether this instance is the one that cleans up, for a while."""
        return await self._link.call(self._take_lock)

    async def _take_lock(self, redis: RedisClient) -> bool:
        lock_ms = int(self._params.lock_s * 1000)
        if await redis.set(LOCK_NAME, self._instance_id, nx=True, px=lock_ms):
            return True
        if await redis.get(LOCK_NAME) != self._instance_id.encode():
            return False
        return bool(await redis.pexpire(LOCK_NAME, lock_ms))


def first_to_go(records: Records, num_bytes: int) -> Records:
    """The fewest records that free so much: least recently used, then deepest in their chain."""
    order = np.lexsort((-records["position"].astype(np.int64), records["used_unix_s"]))
    records = records[order]
    freed_before = records["size_bytes"].astype(np.int64).cumsum() - records["size_bytes"]
    chosen: Records = records[freed_before < num_bytes]
    return chosen


def _batches(records: Records) -> Iterator[Keys]:
    keys = record_keys(records)
    for start in range(0, len(keys), BATCH):
        yield keys[start : start + BATCH]
