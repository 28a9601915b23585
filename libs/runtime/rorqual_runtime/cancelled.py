"""Which requests were cancelled lately, so that work still under way for them dies on arrival."""

from __future__ import annotations

from rorqual_runtime.clock import Clock, WallClock

CANCELLED_TTL_S = 60.0
MAX_CANCELLED = 65_536


class CancelledIds:
    """A bounded set of request ids that forgets each id after `ttl_s`."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        ttl_s: float = CANCELLED_TTL_S,
        max_ids: int = MAX_CANCELLED,
    ) -> None:
        if ttl_s <= 0 or max_ids <= 0:
            raise ValueError(f"need ttl_s > 0 and max_ids > 0; got {ttl_s}, {max_ids}")
        self._clock = clock or WallClock()
        self._ttl_s = ttl_s
        self._max_ids = max_ids
        # Insertion order equals expiry order: an id added again moves to the end.
        self._expires_s: dict[str, float] = {}

    def add(self, request_id: str) -> None:
        """Remember the id for `ttl_s` from now; over the bound the oldest id goes."""
        self._expires_s.pop(request_id, None)
        self._expires_s[request_id] = self._clock.monotonic_s() + self._ttl_s
        self._sweep()

    def __contains__(self, request_id: object) -> bool:
        expires_s = self._expires_s.get(request_id) if isinstance(request_id, str) else None
        return expires_s is not None and self._clock.monotonic_s() < expires_s

    def __len__(self) -> int:
        self._sweep()
        return len(self._expires_s)

    def _sweep(self) -> None:
        now_s = self._clock.monotonic_s()
        while self._expires_s:
            oldest = next(iter(self._expires_s))
            if len(self._expires_s) <= self._max_ids and self._expires_s[oldest] > now_s:
                return
            del self._expires_s[oldest]
