"""Responses kept for later requests: each under its tenant, for a bounded time, of bounded size."""

import asyncio
import hashlib
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rorqual_runtime.clock import Clock
from rorqual_runtime.errors import Unavailable
from rorqual_runtime.logs import get_logger

log = get_logger(__name__)

_FORMAT = 1
_PREFIX = "rorqual:v1:recipe:"
_SECRET_NAME = f"{_PREFIX}sealing-secret"
_INLINE_BYTES = 64 << 10
_AWAY_S = 2.0


class StoredTooLarge(Exception):
    """A response over the byte limit; nothing was kept."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and the conversation that it ends.

    response: the object as the client saw it. items: everything said up to its end, each with an
    id. num_earlier: how many of them came before this request. num_input: how many came before
    the answer. num_bytes: size of the record, once it has been kept.
    """

    response: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]]
    num_earlier: int
    num_input: int
    num_bytes: int = field(default=0, compare=False)

    def encode(self, max_bytes: int) -> bytes:
        """Compressed JSON. Raises: StoredTooLarge."""
        record = {
            "format": _FORMAT,
            "response": self.response,
            "items": self.items,
            "num_earlier": self.num_earlier,
            "num_input": self.num_input,
        }
        plain = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        encoded = plain.encode("utf-8", "surrogatepass")
        if len(encoded) > max_bytes:
            raise StoredTooLarge(f"{len(encoded)} bytes exceed the limit of {max_bytes}")
        return zlib.compress(encoded, 1)

    @classmethod
    def decode(cls, packed: bytes, max_bytes: int) -> "StoredResponse | None":
        """The record; None for anything that is none of this format."""
        try:
            plain = zlib.decompressobj().decompress(packed, max_bytes)
            record = json.loads(plain.decode("utf-8", "surrogatepass"))
            if record["format"] != _FORMAT:
                return None
            return cls(
                record["response"],
                record["items"],
                record["num_earlier"],
                record["num_input"],
                len(plain),
            )
        except (zlib.error, ValueError, KeyError, TypeError):
            return None


class ResponseStore(ABC):
    """What every store promises; where the bytes lie is the subclass's business.

    Every call raises Unavailable when the store can't be reached, without waiting for long.
    """

    def __init__(self, *, ttl_s: float, max_bytes: int) -> None:
        self.ttl_s = ttl_s
        self.max_bytes = max_bytes

    @property
    def is_away(self) -> bool:
        """True while the store is known not to answer."""
        return False

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """The tenant's response of that id; None when it is not there (any more)."""
        packed = await self._read(_name(tenant, response_id))
        if packed is None:
            return None
        if len(packed) <= _INLINE_BYTES:
            return StoredResponse.decode(packed, self.max_bytes)
        return await asyncio.to_thread(StoredResponse.decode, packed, self.max_bytes)

    async def put(self, tenant: str, response_id: str, stored: StoredResponse) -> None:
        """Keep a response; the same id again replaces it. Raises: StoredTooLarge."""
        packed = await asyncio.to_thread(stored.encode, self.max_bytes)
        await self._write(_name(tenant, response_id), packed)

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a response; whether it was there."""
        return await self._remove(_name(tenant, response_id))

    async def shared_secret(self, proposed: bytes) -> bytes:
        """One secret for all instances: the first that was ever proposed."""
        return await self._write_once(_SECRET_NAME, proposed)

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of connections."""

    @abstractmethod
    async def _read(self, name: str) -> bytes | None: ...

    @abstractmethod
    async def _write(self, name: str, packed: bytes) -> None: ...

    @abstractmethod
    async def _remove(self, name: str) -> bool: ...

    @abstractmethod
    async def _write_once(self, name: str, value: bytes) -> bytes: ...


def _name(tenant: str, response_id: str) -> str:
    """Tenant and id at a fixed width each, so no two pairs share a name."""
    parts = (hashlib.blake2b(text.encode(), digest_size=16) for text in (tenant, response_id))
    return f"{_PREFIX}response:" + ":".join(part.hexdigest() for part in parts)


class RedisResponseStore(ResponseStore):
    """Responses in Redis. After a failure it is left alone for a moment."""

    def __init__(
        self,
        url: str,
        *,
        ttl_s: float,
        max_bytes: int,
        timeout_s: float,
        max_connections: int,
        clock: Clock,
    ) -> None:
        super().__init__(ttl_s=ttl_s, max_bytes=max_bytes)
        self._timeout_s = timeout_s
        self._clock = clock
        self._away_until_s = 0.0
        self._pool = BlockingConnectionPool.from_url(
            url,
            max_connections=max_connections,
            timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        self._redis: Redis = Redis(connection_pool=self._pool)

    @property
    def is_away(self) -> bool:
        return self._clock.monotonic_s() < self._away_until_s

    async def aclose(self) -> None:
        await self._pool.disconnect()

    async def _read(self, name: str) -> bytes | None:
        found: bytes | None = await self._call(self._redis.get(name))
        return found

    async def _write(self, name: str, packed: bytes) -> None:
        await self._call(self._redis.set(name, packed, px=max(1, round(self.ttl_s * 1000))))

    async def _remove(self, name: str) -> bool:
        return bool(await self._call(self._redis.delete(name)))

    async def _write_once(self, name: str, value: bytes) -> bytes:
        if await self._call(self._redis.set(name, value, nx=True)):
            return value
        older: bytes | None = await self._call(self._redis.get(name))
        if older is None:
            raise Unavailable("the response store has just lost a value")
        return older

    async def _call(self, operation: Any) -> Any:
        if self.is_away:
            operation.close()
            raise Unavailable("the response store is away")
        try:
            async with asyncio.timeout(self._timeout_s):
                return await operation
        except (RedisError, OSError, TimeoutError) as err:
            log.warning("the response store is away: %s", type(err).__name__)
            self._away_until_s = self._clock.monotonic_s() + _AWAY_S
            await self._pool.disconnect(inuse_connections=False)
            raise Unavailable("the response store is away") from err
