"""Keeps the local index equal to Redis: loads it at the start, and anew whenever something may be
missing. Matches go on meanwhile, from what is known."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from redis.asyncio.cluster import RedisCluster
from rorqual_runtime.clock import Clock
from rorqual_runtime.logs import get_logger
from rorqual_runtime.redis_clients import RedisClient
from rorqual_runtime.redis_link import RedisLink, StoreAway

from rorqual_kvmeta import truth
from rorqual_kvmeta.index import BlockIndex
from rorqual_kvmeta.pending import PendingRecords
from rorqual_kvmeta.records import Keys, Records, record_keys

MARKER_NAME = b"rorqual:v2:marker"
"""A random value: another one means that Redis has lost what it held."""
WRITE_RECORDS = 1024
"""Records handed to Redis at a time."""

OnCleared = Callable[[Records], Awaitable[None]]
"""Told of what was removed, a part at a time."""

log = get_logger(__name__)


class StoreIdentity(NamedTuple):
    """What tells a Redis that was only slow from one that was started again."""

    marker: bytes
    run_id: str
    """Of its process; empty where there are many."""


class IndexMirror:
    """Owns all changes that come to the index from outside. Lives on the event loop."""

    def __init__(
        self,
        index: BlockIndex,
        link: RedisLink,
        clock: Clock,
        *,
        timeout_s: float,
        memory_s: float,
        pause_s: float,
        max_pending: int,
    ) -> None:
        """timeout_s: for one batch; memory_s: how long gone blocks are remembered; pause_s: least
        time between two resyncs; max_pending: registrations kept while Redis is away."""
        self._index = index
        self._link = link
        self._clock = clock
        self._timeout_s, self._memory_s, self._pause_s = timeout_s, memory_s, pause_s
        self.pending = PendingRecords(max_pending)
        self._wanted = asyncio.Event()
        self._store: StoreIdentity | None = None
        """Of the Redis that was read last."""
        self._changed: set[int] | None = None
        """First halves of keys that changed since the resync under way began."""
        self.is_loaded = False
        self._is_behind = True
        """A resync is due, or broke off."""
        self.num_resyncs = 0

    def request(self, reason: str) -> None:
        """Read Redis anew soon; several requests are one."""
        if not self._wanted.is_set():
            log.info("resync wanted", extra={"reason": reason})
            self._wanted.set()

    async def on_redis_return(self) -> None:
        """Read Redis anew, unless it was only slow: what others wrote came as events."""
        with contextlib.suppress(StoreAway):
            store = await self._link.call(_identify)
            if store.run_id and store == self._store and not self._is_behind:
                return
        self.request("redis is back")

    async def run(self) -> None:
        """Resync for ever, whenever it is wanted and Redis is there."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._is_behind = True
            with contextlib.suppress(StoreAway):  # its return asks again
                await self.sync()
            await asyncio.sleep(self._pause_s)

    def apply(self, records: Records) -> None:
        """What was just written to Redis, here or elsewhere: newer than any batch being read."""
        self._index.apply(records, self._clock.now_unix_s())
        self.note(records)

    def note(self, records: Records) -> None:
        """These are in the index as they should be: an older batch must not undo it."""
        if self._changed is not None:
            self._changed.update(records["hi"].tolist())

    async def write(self, records: Records, *, only_live: bool = False) -> None:
        """Hand records to Redis. Raises: StoreAway."""
        for start in range(0, len(records), WRITE_RECORDS):
            part = records[start : start + WRITE_RECORDS]
            await self._link.call(
                partial(
                    truth.put_records,
                    records=part,
                    now_unix_s=self._clock.now_unix_s(),
                    memory_s=self._memory_s,
                    only_live=only_live,
                ),
                timeout_s=self._timeout_s,
            )

    async def read(self, keys: Keys) -> None:
        """Take over what Redis says of these blocks. Raises: StoreAway."""
        self.apply(await self._link.call(partial(truth.read, keys=keys)))

    async def flush(self) -> Records:
        """Hand late registrations to Redis until none is left; all of them. Raises: StoreAway."""
        flushed = []
        while len(self.pending):
            records = self.pending.take(WRITE_RECORDS)
            try:
                await self.write(records)
            except StoreAway:
                self.pending.add(records)
                raise
            flushed.append(records)
        return np.concatenate(flushed) if flushed else self.pending.take(0)

    async def forget(self, model: int | None, tenant: int | None) -> None:
        """Drop from the index what was removed from Redis, here or elsewhere. What was stored
        meanwhile may go with it, or be brought back by a reading under way: so Redis is read."""
        self.pending.clear(model, tenant)
        for part in self._index.parts():
            self._index.clear(part, model, tenant)
            await asyncio.sleep(0)
        self.request("blocks were cleared")

    async def clear(self, model: int | None, tenant: int | None, on_cleared: OnCleared) -> int:
        """Remove from Redis all of a model, a tenant or both (None = any). Raises: StoreAway."""
        self.pending.clear(model, tenant)
        num_removed = 0
        async for records in self._hashes():
            chosen = np.ones(len(records), bool)
            if model is not None:
                chosen &= records["model"] == np.uint64(model)
            if tenant is not None:
                chosen &= records["tenant"] == np.uint64(tenant)
            if chosen.any():
                remove = partial(truth.remove, keys=record_keys(records[chosen]))
                await self._link.call(remove, timeout_s=self._timeout_s)
                await on_cleared(records[chosen])
                num_removed += int(chosen.sum())
        return num_removed

    async def sync(self) -> None:
        """Make the index equal to Redis; what changes meanwhile stays. Raises: StoreAway."""
        await self._restore()
        self._index.begin_resync()
        self._changed = set()
        try:
            async for records in self._hashes():
                new = ~np.isin(records["hi"], np.fromiter(self._changed, np.uint64))
                self._index.apply(records[new], self._clock.now_unix_s())
                await asyncio.sleep(0)
        finally:
            self._changed = None
        await self._drop_unseen()
        self.is_loaded, self._is_behind = True, False
        self.num_resyncs += 1
        log.info("index is in step with redis", extra={"num_records": len(self._index)})

    async def _hashes(self) -> AsyncIterator[Records]:
        iterator: AsyncIterator[bytes] | None = None

        async def next_names(redis: RedisClient) -> list[bytes]:
            nonlocal iterator
            if iterator is None:
                iterator = truth.hash_names(redis)
            names: list[bytes] = []
            async for name in iterator:
                names.append(name)
                if len(names) == truth.SCAN_HASHES:
                    break
            return names

        while names := await self._link.call(next_names, timeout_s=self._timeout_s):
            yield await self._link.call(
                partial(truth.read_hashes, names=names), timeout_s=self._timeout_s
            )

    async def _drop_unseen(self) -> None:
        for part in self._index.parts():
            self._index.drop_unseen(part)
            await asyncio.sleep(0)

    async def _restore(self) -> None:
        """A Redis that lost what it held gets it from here: blocks are where they were."""
        store = await self._link.call(_identify)
        if self._store is not None and store.marker != self._store.marker:
            log.warning("redis lost its records", extra={"num_records": self._index.num_live})
            for part in self._index.parts():
                await self.write(self._index.live_records(part))
        self._store = store


async def _identify(redis: RedisClient) -> StoreIdentity:
    await redis.set(MARKER_NAME, secrets.token_hex(8), nx=True)
    marker: Any = await redis.get(MARKER_NAME)
    if isinstance(redis, RedisCluster):
        return StoreIdentity(bytes(marker or b""), "")
    server: Any = await redis.info("server")
    return StoreIdentity(bytes(marker or b""), str(server.get("run_id", "")))
