"""A Redis that may be away: every call is bounded, and a dead server is not waited for twice."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.exceptions import RedisError

from rorqual_runtime.errors import Unsupported
from rorqual_runtime.logs import get_logger
from rorqual_runtime.redis_clients import RedisClient, close_client, drop_idle, open_client

log: logging.Logger = get_logger(__name__)

T = TypeVar("T")


class StoreAway(Exception):
    """Redis did not answer in time, or did not lately: the caller goes on without it."""


class RedisLink:
    """One client with a circuit: open after a failure, closed by a good ping."""

    def __init__(
        self, url: str, *, timeout_s: float, probe_interval_s: float, max_connections: int
    ) -> None:
        """Raises: ValueError for a URL of no known form."""
        self._timeout_s = timeout_s
        self._probe_interval_s = probe_interval_s
        self._slots = asyncio.Semaphore(max_connections)
        self._redis = open_client(url, timeout_s=timeout_s, max_connections=max_connections)
        self._broken = asyncio.Event()
        self._broken.set()

    @property
    def is_up(self) -> bool:
        """False from a failed call until Redis has answered a ping."""
        return not self._broken.is_set()

    async def call(
        self, operation: Callable[[RedisClient], Awaitable[T]], *, timeout_s: float | None = None
    ) -> T:
        """The operation's result. Raises: StoreAway, at once while Redis is known to be away."""
        if not self.is_up:
            raise StoreAway("redis is away")
        return await self._try(operation, timeout_s or self._timeout_s)

    async def connect(self) -> bool:
        """One try to reach Redis; whether it is up now."""
        try:
            await self._try(_ping, self._timeout_s * 5)
        except StoreAway:
            return False
        self._broken.clear()
        return True

    async def keep_up(self, on_return: Callable[[], Awaitable[None]] | None = None) -> None:
        """For ever: whenever Redis is away, knock until it is back, then call `on_return`."""
        while True:
            await self._broken.wait()
            if await self.connect():
                log.info("redis is up")
                if on_return is not None:
                    await on_return()
            await asyncio.sleep(self._probe_interval_s)

    async def aclose(self) -> None:
        await close_client(self._redis)

    async def _try(self, operation: Callable[[RedisClient], Awaitable[T]], timeout_s: float) -> T:
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                return await operation(self._redis)
        except (RedisError, OSError, TimeoutError) as error:
            await self._break(error)
            raise StoreAway(f"redis: {type(error).__name__}") from error

    async def _break(self, error: Exception) -> None:
        if self.is_up:
            extra = {"reason": type(error).__name__, "error": str(error)[:200]}
            log.warning("redis is away", extra=extra)
        self._broken.set()
        await drop_idle(self._redis)


def open_link(
    url: str, *, timeout_s: float, probe_interval_s: float, max_connections: int
) -> RedisLink:
    """A link for the address in settings. Raises: Unsupported, which ends a start in one line."""
    try:
        return RedisLink(
            url,
            timeout_s=timeout_s,
            probe_interval_s=probe_interval_s,
            max_connections=max_connections,
        )
    except ValueError as error:
        raise Unsupported(f"RORQUAL_REDIS_URL: {error}") from error


async def _ping(redis: RedisClient) -> None:
    await redis.execute_command("PING")  # type: ignore[no-untyped-call]
