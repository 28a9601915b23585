"""What outlives a request of the Responses protocol: stored responses and the sealing key."""

import secrets
from collections.abc import Sequence

from rorqual_runtime.clock import Clock
from rorqual_runtime.logs import get_logger

from rorqual_recipe.response_store import ResponseStore
from rorqual_recipe.sealing import Sealer

log = get_logger(__name__)

MIN_KEY_CHARS = 32
_SECRET_BYTES = 32


class WeakSealingKey(ValueError):
    """A configured key that is too short; its text is not repeated."""


def parse_sealing_keys(text: str) -> list[bytes]:
    """Keys separated by commas: the first seals, all of them open. Raises: WeakSealingKey."""
    keys = [key.strip() for key in text.split(",") if key.strip()]
    if any(len(key) < MIN_KEY_CHARS for key in keys):
        raise WeakSealingKey(f"a sealing key has at least {MIN_KEY_CHARS} characters")
    return [key.encode() for key in keys]


class ResponseMemory:
    """The store, and the sealer that all instances share.

    Without configured keys the instances agree on a random one through the store: whoever is
    first proposes it. Seals then last as long as the store's data.
    """

    def __init__(
        self, store: ResponseStore, keys: Sequence[bytes], *, seal_ttl_s: float, clock: Clock
    ) -> None:
        self.store = store
        self.clock = clock
        self._seal_ttl_s = seal_ttl_s
        self._sealer = Sealer(keys, ttl_s=seal_ttl_s) if keys else None

    async def sealer(self) -> Sealer:
        """The sealer. Raises: Unavailable while nobody knows the shared key."""
        if self._sealer is None:
            log.warning("no sealing key is configured: one is shared through the response store")
            shared = await self.store.shared_secret(secrets.token_bytes(_SECRET_BYTES))
            self._sealer = Sealer([shared], ttl_s=self._seal_ttl_s)
        return self._sealer
