"""Keys from Redis, remembered for a few seconds so that a request seldom waits for it."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from rorqual_runtime.accounts.keys import KEY_PREFIX, ApiKey, KeyStore
from rorqual_runtime.clock import Clock
from rorqual_runtime.errors import Unavailable
from rorqual_runtime.redis_link import RedisLink, StoreAway

MAX_KNOWN, MAX_UNKNOWN = 10_000, 1_000
MAX_SECRET_CHARS = 256


@dataclass(frozen=True, slots=True)
class _Answer:
    key: ApiKey | None
    asked_s: float


class StoredKeys:
    """Looks keys up.

    fresh_s: how long an answer counts, so how long a revoked key may go on.
    stale_s: how long a good key goes on while Redis is away.
    """

    def __init__(self, link: RedisLink, clock: Clock, *, fresh_s: float, stale_s: float) -> None:
        self._link = link
        self._clock = clock
        self._fresh_s = fresh_s
        self._stale_s = stale_s
        self._known: OrderedDict[bytes, _Answer] = OrderedDict()
        self._unknown: OrderedDict[bytes, _Answer] = OrderedDict()
        """Apart from the others: a flood of guesses must not push good keys out."""

    async def find(self, secret: str) -> ApiKey | None:
        """The key, None when it is unknown or expired. Raises: Unavailable."""
        if not secret.startswith(KEY_PREFIX) or len(secret) > MAX_SECRET_CHARS:
            return None
        key = await self._find(secret)
        return None if key is None or key.is_expired(self._clock.now_unix_s()) else key

    async def _find(self, secret: str) -> ApiKey | None:
        name, now_s = hashlib.sha256(secret.encode()).digest(), self._clock.monotonic_s()
        known = self._known.get(name) or self._unknown.get(name)
        if known is not None and now_s - known.asked_s < self._fresh_s:
            return known.key
        try:
            key = await self._link.call(lambda redis: KeyStore(redis).find(secret))
        except StoreAway:
            if known is None or known.key is None or now_s - known.asked_s > self._stale_s:
                raise Unavailable("the API key can't be looked up now") from None
            return known.key
        self._remember(name, _Answer(key, now_s))
        return key

    def _remember(self, name: bytes, answer: _Answer) -> None:
        for table in (self._known, self._unknown):
            table.pop(name, None)
        table, limit = (
            (self._unknown, MAX_UNKNOWN) if answer.key is None else (self._known, MAX_KNOWN)
        )
        table[name] = answer
        if len(table) > limit:
            table.popitem(last=False)
