"""Answers under an `Idempotency-Key`, in Redis: where one goes on, or what it was."""

import asyncio
import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from rorqual_runtime.clock import Clock
from rorqual_runtime.errors import InvalidRequest
from rorqual_runtime.logs import get_logger
from rorqual_runtime.redis_clients import RedisClient
from rorqual_runtime.redis_link import RedisLink, StoreAway

from rorqual_gateway.convert import EncodedRequest
from rorqual_gateway.endpoints import Endpoint

log = get_logger(__name__)

MAX_KEY_CHARS = 255
READING_S = 60.0
"""How long a gateway may take from claiming a key to having the request under way."""
_POLL_S = 0.2
_MAX_TRIES = 8
"""Of a change that others get ahead of."""
_DROP = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
_REPLACE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
_PREFIX = "rorqual:v1:gateway:answer:"


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """One answer. digest: of what was asked. owner: the gateway that was asked first.

    recipe_id: "" until it is under way. first_recipe_id: decode sends the tokens there. take_over:
    which instance recipe_id is of this answer. charged_tokens: counted against a quota already.
    body: the whole answer, once it has ended: SSE frames when is_stream.
    """

    digest: str
    request_id: str
    owner: str
    received_unix_s: float
    deadline_unix_s: float
    recipe_id: str = ""
    first_recipe_id: str = ""
    take_over: int = 0
    model: str = ""
    num_choices: int = 1
    max_new_tokens: int = 0
    is_stream: bool = False
    charged_tokens: int = 0
    body: bytes | None = None

    def under_way(self, encoded: EncodedRequest) -> "KeptAnswer":
        """The same, once its generations have been submitted."""
        return replace(
            self,
            recipe_id=encoded.recipe_id,
            first_recipe_id=encoded.recipe_id,
            model=encoded.model,
            num_choices=encoded.num_choices,
            max_new_tokens=encoded.max_new_tokens,
            is_stream=encoded.stream,
        )

    def encoded(self) -> EncodedRequest:
        """What recipe made of it, with nothing left to submit."""
        return EncodedRequest(
            model=self.model,
            recipe_id=self.recipe_id,
            num_choices=self.num_choices,
            max_new_tokens=self.max_new_tokens,
            stream=self.is_stream,
            warnings=(),
            submits=(),
        )

    def to_bytes(self) -> bytes:
        """A line of JSON, and the body compressed."""
        facts = json.dumps({**asdict(self), "body": self.body is not None}).encode()
        return facts + b"\n" + zlib.compress(self.body or b"", 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> "KeptAnswer":
        """Back. Raises: ValueError, TypeError for bytes of another make."""
        line, _, packed = data.partition(b"\n")
        facts = json.loads(line)
        try:
            body = zlib.decompress(packed) if facts.pop("body") else None
        except (zlib.error, KeyError) as error:
            raise ValueError("not a kept answer") from error
        return cls(**facts, body=body)


def merged(current: KeptAnswer, newer: KeptAnswer) -> KeptAnswer:
    """What is kept when two gateways speak of one answer: a whole one stays, else who took over
    last counts; of the charged tokens the most. Another request under the key keeps its place."""
    if current.request_id != newer.request_id:
        return current
    is_outdated = newer.body is None and current.take_over > newer.take_over
    ahead = current if current.body is not None or is_outdated else newer
    charged_tokens = max(current.charged_tokens, newer.charged_tokens)
    return replace(ahead, charged_tokens=charged_tokens)


class KeyReused(Exception):
    """The key belongs to another request."""


def digest_of(endpoint: Endpoint, resource: str, body: bytes) -> str:
    """Equal for equal requests only."""
    digest = hashlib.sha256(f"{endpoint.name} {resource}\n".encode())
    digest.update(body)
    return digest.hexdigest()


def name_of(tenant: str, key: str) -> str:
    """Where a tenant's key is kept; parts of one width, so no two pairs share a name.

    Raises: InvalidRequest for a key that is none.
    """
    if len(key) > MAX_KEY_CHARS or not key.isprintable():
        raise InvalidRequest(f"Idempotency-Key: at most {MAX_KEY_CHARS} printable characters")
    parts = (hashlib.blake2b(text.encode(), digest_size=16).hexdigest() for text in (tenant, key))
    return _PREFIX + ":".join(parts)


class KeptAnswers:
    """While Redis is away nothing is kept: serving first.

    ttl_s: how long beyond its end or its deadline. max_bytes: of one answer; longer ones can be
    gone on with, and not had again. is_alive: whether an owner is.
    """

    def __init__(
        self,
        link: RedisLink,
        clock: Clock,
        is_alive: Callable[[str], bool],
        *,
        ttl_s: float,
        max_bytes: int,
    ) -> None:
        self._link = link
        self._is_alive = is_alive
        self._clock = clock
        self._ttl_s = ttl_s
        self.max_bytes = max_bytes

    async def claim(self, name: str, wanted: KeptAnswer) -> KeptAnswer | None:
        """`wanted` itself when the key is free, else the answer it belongs to; None without Redis.

        One that is not under way is waited for as long as its gateway is alive, for READING_S at
        most; then it is taken for lost, unless it has become another one. Raises: KeyReused.
        """
        give_up_s, awaited_id = 0.0, ""
        try:
            while not await self._link.call(lambda redis: self._set(redis, name, wanted)):
                data = await self._read(name)
                kept = _parse(data)
                if kept is None:
                    await self._drop(name, data)
                    continue
                if kept.digest != wanted.digest:
                    raise KeyReused
                if kept.recipe_id or kept.body is not None:
                    return kept
                if kept.request_id != awaited_id:
                    give_up_s, awaited_id = self._clock.monotonic_s() + READING_S, kept.request_id
                is_late = self._clock.monotonic_s() > give_up_s
                if is_late or not self._is_alive(kept.owner):
                    await self._drop(name, data)
                    continue
                await asyncio.sleep(_POLL_S)
        except StoreAway:
            return None
        return wanted

    async def keep(self, name: str, kept: KeptAnswer) -> None:
        """Replace what is known of an answer, unless more is known already."""
        try:
            for _ in range(_MAX_TRIES):
                if await self._replace(name, kept):
                    return
        except StoreAway:
            pass
        log.warning("an answer can't be had again", extra={"request_id": kept.request_id})

    async def charged_tokens(self, name: str, request_id: str) -> int:
        """Of an answer, by all who listened to it so far; 0 when that can't be known now."""
        try:
            kept = _parse(await self._read(name))
        except StoreAway:
            return 0
        return kept.charged_tokens if kept is not None and kept.request_id == request_id else 0

    async def release(self, name: str, request_id: str) -> None:
        """The request has failed: the next one under its key begins anew."""
        try:
            data = await self._read(name)
            kept = _parse(data)
            if kept is not None and kept.request_id == request_id:
                await self._drop(name, data)
        except StoreAway:
            return

    async def _read(self, name: str) -> bytes:
        data = await self._link.call(lambda redis: redis.get(name))
        return data if isinstance(data, bytes) else b""

    async def _drop(self, name: str, data: bytes) -> None:
        """Unless something else is there by now."""
        if data:
            await self._link.call(lambda redis: _run(redis, _DROP, name, data))

    async def _replace(self, name: str, kept: KeptAnswer) -> bool:
        """False when somebody else was faster."""
        data = await self._read(name)
        current = _parse(data)
        if not data:
            return await self._link.call(lambda redis: self._set(redis, name, kept))
        best = merged(current, kept) if current is not None else kept
        if best == current:
            return True
        args = (data, best.to_bytes(), self._ttl_ms(best))
        return bool(await self._link.call(lambda redis: _run(redis, _REPLACE, name, *args)))

    async def _set(self, redis: RedisClient, name: str, kept: KeptAnswer) -> bool:
        """False when the place is taken."""
        return bool(await redis.set(name, kept.to_bytes(), px=self._ttl_ms(kept), nx=True))

    def _ttl_ms(self, kept: KeptAnswer) -> int:
        left_s = max(0.0, kept.deadline_unix_s - self._clock.now_unix_s())
        ttl_s = self._ttl_s if kept.body is not None else self._ttl_s + left_s
        return round(ttl_s * 1000)


async def _run(redis: RedisClient, script: str, name: str, *args: bytes | int) -> Any:
    return await redis.register_script(script)(keys=[name], args=args)


def _parse(data: bytes) -> KeptAnswer | None:
    """None for nothing, and for what an older version has written."""
    try:
        return KeptAnswer.from_bytes(data)
    except (ValueError, TypeError):
        return None
