"""Which blocks are stored: matching, registering and forgetting, in Redis."""

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from rorqual_runtime.clock import Clock

from rorqual_kvmeta.blocks import (
    BlockMatch,
    BlockRecord,
    Lifetimes,
    StoredBlock,
    longest_prefix,
    redis_keys,
)

Records = dict[bytes, BlockRecord]
"""What each name in Redis should hold from now on."""


class BlockIndex:
    """Operations on a Redis that the caller holds; they never wait for anything else."""

    def __init__(self, lifetimes: Lifetimes, clock: Clock) -> None:
        self._lifetimes = lifetimes
        self._clock = clock

    async def match(
        self, redis: Redis, fingerprint: str, keys: Sequence[bytes]
    ) -> tuple[BlockMatch, Records]:
        """Longest stored prefix, and the records of it that deserve a longer life. One round trip;
        writing those records down is left to `write`, off the critical path."""
        names = redis_keys(fingerprint, keys)
        records = _decode(await redis.mget(names))
        now_unix_s = self._clock.now_unix_s()
        match = longest_prefix(records, now_unix_s)
        touched: Records = {}
        for name, record in zip(names[: match.num_blocks], records, strict=False):
            longer = self._lifetimes.touched(record, now_unix_s) if record else None
            if longer:
                touched[name] = longer
        return match, touched

    async def write(self, redis: Redis, records: Records, *, only_existing: bool) -> None:
        """Write records with their expiry, in one round trip.

        only_existing: leave out names that are gone by now, so that a use never revives a block
        that was forgotten meanwhile.
        """
        now_unix_s = self._clock.now_unix_s()
        async with redis.pipeline(transaction=False) as pipeline:
            for name, record in records.items():
                ttl_ms = self._lifetimes.redis_ttl_ms(record, now_unix_s)
                pipeline.set(name, record.encode(), px=ttl_ms, xx=only_existing)
            await pipeline.execute()

    async def register(self, redis: Redis, fingerprint: str, blocks: Sequence[StoredBlock]) -> int:
        """Make blocks known from now on; a longer life that one has already is kept.

        Idempotent. Returns how many blocks are known now.
        """
        names = redis_keys(fingerprint, [block.key for block in blocks])
        known = _decode(await redis.mget(names))
        now_unix_s = self._clock.now_unix_s()
        records: Records = {}
        for name, block, old in zip(names, blocks, known, strict=True):
            expires_unix_s = self._lifetimes.expires_unix_s(block.is_chat, now_unix_s)
            if old is None or old.expires_unix_s < expires_unix_s:
                records[name] = BlockRecord(
                    expires_unix_s, block.is_chat, block.size_bytes, block.store
                )
        if records:
            await self.write(redis, records, only_existing=False)
        return len(blocks)

    async def forget(self, redis: Redis, fingerprint: str, keys: Sequence[bytes]) -> int:
        """Blocks are no longer known; how many were."""
        return int(await redis.unlink(*redis_keys(fingerprint, keys)))


def _decode(values: Sequence[Any]) -> list[BlockRecord | None]:
    return [BlockRecord.decode(value) if value is not None else None for value in values]
