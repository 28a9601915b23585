"""Quotas at the edge: they let a request in, and hear at its end what it used."""

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from rorqual_runtime.accounts.quotas import Quotas, QuotaState
from rorqual_runtime.errors import RateLimited
from rorqual_runtime.redis_link import RedisLink, StoreAway

from rorqual_gateway.callers import Caller
from rorqual_gateway.metrics import GatewayMetrics

Track = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

_UNITS = {
    "requests_per_minute": "requests a minute",
    "tokens_per_minute": "tokens a minute",
    "max_concurrent": "requests at once",
}
MAX_OWED = 10_000
"""Ended requests that Redis has yet to hear of; of more the oldest are forgotten."""


class _Ended(NamedTuple):
    """A request that needs its place no more."""

    caller: Caller
    request_id: str
    num_tokens: int


class OverQuota(RateLimited):
    """A key's own limit is reached. state: all its limits, for the headers of the refusal."""

    def __init__(self, caller: Caller, state: QuotaState) -> None:
        limit = getattr(caller.limits, state.refused_by)
        message = f"this API key may use {limit} {_UNITS[state.refused_by]}"
        super().__init__(max(1, math.ceil(state.retry_after_s)), message)
        self.state = state


class QuotaGate:
    """Counts in Redis, over all gateways. While Redis is away nobody is refused: serving first.
    What ends meanwhile is told on its return.

    lease_s: when a request counts as ended, should this gateway die.
    """

    def __init__(
        self, link: RedisLink, metrics: GatewayMetrics, track: Track, *, lease_s: float
    ) -> None:
        self._link = link
        self._metrics = metrics
        self._track = track
        self._lease_s = lease_s
        self._settling: dict[str, set[asyncio.Task[None]]] = defaultdict(set)
        self._owed: deque[_Ended] = deque(maxlen=MAX_OWED)

    @asynccontextmanager
    async def hold(
        self, caller: Caller, request_id: str, num_tokens: Callable[[], int]
    ) -> AsyncIterator[QuotaState | None]:
        """Let a request in; at its end `num_tokens` says what it used. Raises: OverQuota."""
        if not caller.limits.are_set:
            yield None
            return
        state = await self._take(caller, request_id)
        try:
            yield state
        finally:  # also of one that Redis let in without its word reaching us
            self._settle_soon(_Ended(caller, request_id, num_tokens()))

    async def settle_owed(self) -> None:
        """Redis is back: it is told what ended meanwhile."""
        while self._owed and await self._tell(self._owed.popleft()):
            pass

    async def _take(self, caller: Caller, request_id: str) -> QuotaState | None:
        if settling := self._settling.get(caller.key_id):
            await asyncio.wait(settling)  # this key's last request may have ended just now
        try:
            state = await self._link.call(
                lambda redis: Quotas(redis).take(
                    caller.key_id, caller.limits, request_id, lease_s=self._lease_s
                )
            )
        except StoreAway:
            self._metrics.count_unmetered()
            return None
        if state.refused_by:
            raise OverQuota(caller, state)
        return state

    def _settle_soon(self, ended: _Ended) -> None:
        """In the background: the request may be one that is being cancelled."""
        key_id = ended.caller.key_id
        tasks = self._settling[key_id]
        task = self._track(self._settle(ended))
        tasks.add(task)

        def settled(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if not tasks and self._settling.get(key_id) is tasks:
                del self._settling[key_id]

        task.add_done_callback(settled)

    async def _settle(self, ended: _Ended) -> None:
        if await self._tell(ended) and self._owed:
            self._track(self.settle_owed())

    async def _tell(self, ended: _Ended) -> bool:
        """Whether Redis knows now that this one has ended; else it stays owed."""
        caller, request_id, num_tokens = ended
        try:
            await self._link.call(
                lambda redis: Quotas(redis).settle(
                    caller.key_id, caller.limits, request_id, num_tokens=num_tokens
                )
            )
        except StoreAway:
            self._owed.append(ended)
            return False
        return True
