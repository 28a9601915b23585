"""What outlives a request of the Responses protocol: stored responses and the sealing key."""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

from rorqual_runtime.clock import Clock
from rorqual_runtime.errors import Unavailable
from rorqual_runtime.logs import get_logger

from rorqual_recipe.response_store import RedisResponseStore, ResponseStore
from rorqual_recipe.sealing import Sealer, parse_sealing_keys
from rorqual_recipe.settings import RecipeSettings

log = get_logger(__name__)

_SECRET_BYTES = 32
_LOOK_INTERVAL_S = 30.0
_MAX_SHARED_KEYS = 4


class ResponseMemory:
    """The store, and the sealer that all instances share.

    Without configured keys the instances agree on a random one through the store: whoever is
    first proposes it. It is looked at again now and then, so that they agree again after the
    store has lost it; what was sealed before still opens where the older key is known.
    """

    def __init__(
        self, store: ResponseStore, keys: Sequence[bytes], *, seal_ttl_s: float, clock: Clock
    ) -> None:
        self.store = store
        self.clock = clock
        self._seal_ttl_s = seal_ttl_s
        self._keys = list(keys)
        self._is_shared = not keys
        self._sealer = Sealer(keys, ttl_s=seal_ttl_s) if keys else None
        self._next_look_s = 0.0

    async def sealer(self) -> Sealer:
        """The sealer. Raises: Unavailable while nobody knows the shared key."""
        if self._is_shared and self.clock.monotonic_s() >= self._next_look_s:
            await self._agree()
        assert self._sealer is not None
        return self._sealer

    async def _agree(self) -> None:
        proposed = self._keys[0] if self._keys else secrets.token_bytes(_SECRET_BYTES)
        try:
            shared = await self.store.shared_secret(proposed)
        except Unavailable:
            if self._sealer is None:
                raise
            return
        self._next_look_s = self.clock.monotonic_s() + _LOOK_INTERVAL_S
        if shared not in self._keys[:1]:
            log.warning("no sealing key is configured: one is shared through the response store")
            self._keys = [shared, *(key for key in self._keys if key != shared)][:_MAX_SHARED_KEYS]
            self._sealer = Sealer(self._keys, ttl_s=self._seal_ttl_s)


@asynccontextmanager
async def open_memory(
    clock: Clock, redis_url: str, settings: RecipeSettings
) -> AsyncIterator[ResponseMemory]:
    """The memory in Redis, as long as the block runs; Redis may be away."""
    store = RedisResponseStore(
        redis_url,
        ttl_s=settings.response_ttl_s,
        max_bytes=settings.max_stored_response_bytes,
        timeout_s=settings.store_timeout_s,
        max_connections=settings.store_connections,
        clock=clock,
    )
    keys = parse_sealing_keys(settings.sealing_key.get_secret_value())
    async with aclosing(store):
        yield ResponseMemory(store, keys, seal_ttl_s=settings.seal_ttl_s, clock=clock)
