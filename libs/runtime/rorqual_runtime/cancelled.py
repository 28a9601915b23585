"""Which requests were cancelled lately, so that work still under way for them dies on arrival."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from rorqual_proto.v1 import router_pb2

from rorqual_runtime.clock import Clock, WallClock

CANCELLED_TTL_S = 60.0
MAX_CANCELLED = 65_536


class Phase(StrEnum):
    """How far a request had come that was given up. Two services may both hold it for a moment, and
    count it each in its own."""

    PREPARING = "preparing"
    """Router: prefix, grammar and images are asked for."""
    QUEUED = "queued"
    FETCHING = "fetching"
    """Prefill: what is stored of its prompt is read, or pages are waited for."""
    PREFILL = "prefill"
    HANDOVER = "handover"
    DECODE = "decode"
    MIGRATING = "migrating"
    """Decode: another instance is asked to go on with it."""


def cancel_target(request: router_pb2.CancelRequest) -> tuple[str, int | None]:
    """What ends: a request id, and the one choice of it or None for all of them."""
    return request.request_id, request.choice_index if request.HasField("choice_index") else None


class CancelledIds:
    """A bounded set of request ids, whole or single choices, that forgets each after `ttl_s`.

    num_by_phase: requests that were under way here and were let go, since start, by `Phase`.
    """

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
        self._expires_s: dict[tuple[str, int | None], float] = {}
        self.num_by_phase: Counter[str] = Counter()

    def add(self, request_id: str, choice_index: int | None = None) -> None:
        """Remember it for `ttl_s` from now; over the bound the oldest goes."""
        key = (request_id, choice_index)
        self._expires_s.pop(key, None)
        self._expires_s[key] = self._clock.monotonic_s() + self._ttl_s
        self._sweep()

    def __contains__(self, request_id: object) -> bool:
        """Whether the request as a whole was cancelled."""
        return isinstance(request_id, str) and self._is_known((request_id, None))

    def covers(self, request_id: str, choice_index: int) -> bool:
        """Whether this choice was cancelled, by itself or with its request."""
        return request_id in self or self._is_known((request_id, choice_index))

    def __len__(self) -> int:
        self._sweep()
        return len(self._expires_s)

    def _is_known(self, key: tuple[str, int | None]) -> bool:
        expires_s = self._expires_s.get(key)
        return expires_s is not None and self._clock.monotonic_s() < expires_s

    def _sweep(self) -> None:
        now_s = self._clock.monotonic_s()
        while self._expires_s:
            oldest = next(iter(self._expires_s))
            if len(self._expires_s) <= self._max_ids and self._expires_s[oldest] > now_s:
                return
            del self._expires_s[oldest]
