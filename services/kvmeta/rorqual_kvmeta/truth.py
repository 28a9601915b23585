"""Block records in Redis: what is true of them.

Records lie in 2^17 hashes chosen by the key, field = key, value = the rest of the record. Up to ten
million blocks these hashes stay small enough for Redis's compact encoding. A hash expires with its
last record. What depends on the record that is there already is decided inside Redis, by a script
on one hash, so that instances can't undo each other's writes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
from rorqual_policy import KEY_BYTES
from rorqual_runtime.redis_clients import RedisClient

from rorqual_kvmeta.records import (
    Keys,
    Records,
    State,
    expires_unix_s,
    from_hashes,
    from_values,
    record_keys,
)

PREFIX = b"rorqual:v2:blocks:"
BUCKET_BITS = 17
SCAN_HASHES = 256
"""Hashes read at a time."""

_LIB = """
local function is_live(value) return #value == 40 and value:byte(13) % 8 == 1 end
local function ends(value)
  local used, lifetime = struct.unpack('<I4I4', value)
  return used + lifetime
end
"""

_PUT = (
    _LIB
    + """
local function life(old, new) return (ends(new) > ends(old) and new or old):sub(1, 8) end
local function joined(old, new)
  local both = old:sub(21, 24) == new:sub(21, 24) and bit.band or bit.bor
  local flags = string.char(both(old:byte(13), new:byte(13)))
  return life(old, new) .. new:sub(9, 12) .. flags .. new:sub(14)
end
local only_live, now, keep_s = ARGV[1] == '1', tonumber(ARGV[2]), tonumber(ARGV[3])
for i = 4, #ARGV, 2 do
  local old, new = redis.call('HGET', KEYS[1], ARGV[i]), ARGV[i + 1]
  local lives = old and is_live(old)
  if lives and only_live then
    new = life(old, new) .. old:sub(9)
  elseif lives and ends(old) > now then
    new = joined(old, new)
  end
  if new ~= old and (lives or not only_live) then
    redis.call('HSET', KEYS[1], ARGV[i], new)
  end
end
if redis.call('TTL', KEYS[1]) < keep_s then redis.call('EXPIRE', KEYS[1], keep_s) end
"""
)
"""only_live, now, seconds the hash is kept, then fields and values. What is live already is joined
with them as `BlockIndex.merged` does: a longer life is never shortened. A use (only_live) changes
nothing but the life: who tells of it may not know yet where the block lies by now."""

_FORGET = (
    _LIB
    + """
local count = 0
for i = 3, #ARGV do
  local old = redis.call('HGET', KEYS[1], ARGV[i])
  if old and is_live(old) then
    local kind = old:byte(13)
    local flags = string.char(kind - kind % 8 + tonumber(ARGV[1]))
    local when = struct.pack('<I4I4', tonumber(ARGV[2]), 0)
    redis.call('HSET', KEYS[1], ARGV[i], when .. old:sub(9, 12) .. flags .. old:sub(14))
    count = count + 1
  end
end
return count
"""
)
"""state, now, then fields: live ones are gone from now on, and remembered as such."""

_DROP = (
    _LIB
    + """
for i = 2, #ARGV do
  local old = redis.call('HGET', KEYS[1], ARGV[i])
  if old and (#old ~= 40 or ends(old) <= tonumber(ARGV[1])) then
    redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
"""
)
"""time, then fields: those that had ended by then are removed."""


async def put_records(
    redis: RedisClient, records: Records, *, now_unix_s: float, memory_s: float, only_live: bool
) -> None:
    """Write records in one round trip; a longer life that Redis knows of is kept.

    memory_s: how much longer than it lives a block is remembered; only_live: leave out those that
    Redis does not hold as live, so that a use never revives a block that was forgotten meanwhile.
    """
    if not len(records):
        return
    keep_s = int(expires_unix_s(records).max() - now_unix_s + memory_s) + 1
    head = ["1" if only_live else "0", repr(float(now_unix_s)), max(1, keep_s)]
    packed = records.tobytes()
    async with redis.pipeline(transaction=False) as pipeline:
        for name, rows in _by_hash(record_keys(records)):
            items: list[Any] = []
            for row in rows:
                start = row * records.itemsize
                items.append(packed[start : start + KEY_BYTES])
                items.append(packed[start + KEY_BYTES : start + records.itemsize])
            pipeline.eval(_PUT, 1, name, *head, *items)
        await pipeline.execute()


async def forget(redis: RedisClient, keys: Keys, state: State, now_unix_s: float) -> int:
    """Live blocks are gone for a reason; how many were live."""
    return sum(await _on_fields(redis, _FORGET, keys, int(state), int(now_unix_s)))


async def drop_ended(redis: RedisClient, keys: Keys, ended_unix_s: float) -> None:
    """Remove the records of blocks whose time was over by then."""
    await _on_fields(redis, _DROP, keys, int(ended_unix_s))


async def read(redis: RedisClient, keys: Keys) -> Records:
    """What Redis knows of these blocks, in one round trip; those it does not know are left out."""
    names = _fields(keys)
    async with redis.pipeline(transaction=False) as pipeline:
        for name, field in zip(_hash_names(keys), names, strict=True):
            pipeline.hget(name, field)  # type: ignore[arg-type]
        values = await pipeline.execute()
    return from_values(names, values)


def hash_names(redis: RedisClient) -> AsyncIterator[bytes]:
    """Names of all hashes; each that is there all along comes at least once."""
    names: AsyncIterator[bytes] = redis.scan_iter(match=PREFIX + b"*", count=2 * SCAN_HASHES)
    return names


async def read_hashes(redis: RedisClient, names: list[bytes]) -> Records:
    """All records of some hashes, in one round trip."""
    async with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.hgetall(name)  # type: ignore[arg-type]
        return from_hashes(await pipeline.execute())


async def remove(redis: RedisClient, keys: Keys) -> None:
    """Nothing is known of these blocks any more, whatever it was."""
    names = _fields(keys)
    async with redis.pipeline(transaction=False) as pipeline:
        for name, rows in _by_hash(keys):
            pipeline.hdel(name, *(names[row] for row in rows))  # type: ignore[arg-type]
        await pipeline.execute()


async def _on_fields(redis: RedisClient, script: str, keys: Keys, *head: int) -> list[Any]:
    names = _fields(keys)
    async with redis.pipeline(transaction=False) as pipeline:
        for name, rows in _by_hash(keys):
            pipeline.eval(script, 1, name, *map(str, head), *(names[row] for row in rows))  # type: ignore[arg-type]
        answers: list[Any] = await pipeline.execute()
        return answers


def _fields(keys: Keys) -> list[bytes]:
    packed = np.ascontiguousarray(keys).tobytes()
    return [packed[start : start + KEY_BYTES] for start in range(0, len(packed), KEY_BYTES)]


def _hash_names(keys: Keys) -> list[bytes]:
    numbers = keys[:, 1] >> np.uint64(64 - BUCKET_BITS)
    return [PREFIX + b"%05x" % number for number in numbers.tolist()]


def _by_hash(keys: Keys) -> Iterator[tuple[bytes, list[int]]]:
    """Rows of the keys that belong to each hash."""
    rows: dict[bytes, list[int]] = {}
    for row, name in enumerate(_hash_names(keys)):
        rows.setdefault(name, []).append(row)
    return iter(rows.items())
