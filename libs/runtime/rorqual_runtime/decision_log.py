"""Decisions as the simulator's tests can replay them: (input, decision), at debug level."""

import dataclasses
import logging
from typing import Any


def log_decision(log: logging.Logger, kind: str, given: Any, decision: Any) -> None:
    """One log line; nothing is built unless debug logging is on."""
    if log.isEnabledFor(logging.DEBUG):
        extra = {"kind": kind, "input": _plain(given), "decision": _plain(decision)}
        log.debug("decision", extra=extra)


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    return value
