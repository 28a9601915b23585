"""Events kept for a gateway that missed some: of live streams, and for a while of ended ones."""

from collections import deque
from dataclasses import dataclass
from typing import Any


class EventLog:
    """The newest events of one request, as they were sent; bounded in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._events: deque[tuple[int, int, Any]] = deque()
        self._num_bytes = 0

    def append(self, seq: int, num_bytes: int, event: Any) -> None:
        """Keep an event; the oldest go when the bound is passed, never the newest."""
        self._events.append((seq, num_bytes, event))
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes and len(self._events) > 1:
            self._num_bytes -= self._events.popleft()[1]

    def since(self, from_seq: int) -> list[Any] | None:
        """Events from `from_seq` on; None when the first of them is gone."""
        if self._events and from_seq < self._events[0][0]:
            return None
        return [event for seq, _, event in self._events if seq >= from_seq]


@dataclass(frozen=True, slots=True)
class _Ended:
    log: EventLog
    expires_s: float


class EndedStreams:
    """Logs of streams that have ended: a bounded number, each for a bounded time."""

    def __init__(self, *, ttl_s: float, max_streams: int) -> None:
        self._ttl_s = ttl_s
        self._max_streams = max_streams
        self._ended: dict[str, _Ended] = {}

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, request_id: str, log: EventLog, now_s: float) -> None:
        """Keep a log from now on; over the bound the oldest goes."""
        self._ended[request_id] = _Ended(log, now_s + self._ttl_s)
        if len(self._ended) > self._max_streams:
            del self._ended[next(iter(self._ended))]

    def get(self, request_id: str) -> EventLog | None:
        """The log, while it is kept."""
        ended = self._ended.get(request_id)
        return ended.log if ended is not None else None

    def remove(self, request_id: str) -> None:
        """Forget a log; unknown ids are fine."""
        self._ended.pop(request_id, None)

    def forget_expired(self, now_s: float) -> None:
        """Drop what is too old; entries are in the order of their end."""
        for request_id, ended in list(self._ended.items()):
            if ended.expires_s > now_s:
                return
            del self._ended[request_id]
