"""Quotas at the edge: they let a request in, and hear at its end what it used."""

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

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


class OverQuota(RateLimited):
    """A key's own limit is reached. state: all its limits, for the headers of the refusal."""

    def __init__(self, caller: Caller, state: QuotaState) -> None:
        limit = getattr(caller.limits, state.refused_by)
        message = f"this API key may use {limit} {_UNITS[state.refused_by]}"
        super().__init__(max(1, math.ceil(state.retry_after_s)), message)
        self.state = state


class QuotaGate:
    """Counts in Redis, over all gateways. While Redis is away nobody is refused: serving first.

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
        finally:
            if state is not None:
                self._settle_soon(caller, request_id, num_tokens())

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

    def _settle_soon(self, caller: Caller, request_id: str, num_tokens: int) -> None:
        """In the background: the request may be one that is being cancelled."""
        tasks = self._settling[caller.key_id]
        task = self._track(self._settle(caller, request_id, num_tokens))
        tasks.add(task)

        def settled(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if not tasks and self._settling.get(caller.key_id) is tasks:
                del self._settling[caller.key_id]

        task.add_done_callback(settled)

    async def _settle(self, caller: Caller, request_id: str, num_tokens: int) -> None:
        try:
            await self._link.call(
                lambda redis: Quotas(redis).settle(
                    caller.key_id, caller.limits, request_id, num_tokens=num_tokens
                )
            )
        except StoreAway:
            self._metrics.count_unmetered()
