"""Decisions as the simulator can replay them: (input, decision), off by default, bounded.

Each line stands for itself, so losing some loses nothing else. `rorqual replay-log` reads them.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

MAX_PER_S = 200
"""Beyond it decisions are not logged until the next second."""

_log = logging.getLogger("rorqual.decisions")


def log_decision(kind: str, given: tuple[Any, ...], decision: Any) -> None:
    """One log line; nothing is built unless decisions are logged.

    kind: names the policy function; given: its arguments, in order.
    """
    if _log.isEnabledFor(logging.DEBUG):
        extra = {"kind": kind, "input": _plain(given), "decision": _plain(decision)}
        _log.debug("decision", extra=extra)


def configure_decision_log(enabled: bool, now_s: Callable[[], float] = time.monotonic) -> None:
    """Log decisions, at most MAX_PER_S, or only where all debug lines are logged."""
    _log.setLevel(logging.DEBUG if enabled else logging.NOTSET)
    for old in list(_log.filters):
        _log.removeFilter(old)
    _log.addFilter(_Bound(now_s))


class _Bound(logging.Filter):
    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._now_s = now_s
        self._second = 0
        self._num = 0

    def filter(self, record: logging.LogRecord) -> bool:
        second = int(self._now_s())
        if second != self._second:
            self._second, self._num = second, 0
        self._num += 1
        return self._num <= MAX_PER_S


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    return value.hex() if isinstance(value, bytes) else value
