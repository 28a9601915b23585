"""JSON lines on stderr with request and trace ids. Request content is never logged.

Extra facts go in `extra`: `log.info("placed", extra={"decode_id": id, "reason": reason})`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from opentelemetry import trace

_STANDARD_FIELDS = frozenset(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}
_MAX_FRAMES = 12
_MAX_ERROR_CHARS = 300

_request_id: ContextVar[str] = ContextVar("rorqual_request_id", default="")


def get_logger(name: str) -> logging.Logger:
    """The logger of a module; it writes JSON once `configure_logging` has run."""
    return logging.getLogger(name)


@contextlib.contextmanager
def bind_request_id(request_id: str) -> Iterator[None]:
    """Every log line inside carries this request id, in spawned tasks too."""
    token = _request_id.set(request_id)
    try:
        yield
    finally:
        _request_id.reset(token)


def current_request_id() -> str:
    """The bound request id; empty outside any request."""
    return _request_id.get()


@contextlib.contextmanager
def log_duration(log: logging.Logger, message: str) -> Iterator[None]:
    """Log the message and the seconds that the block took, once it has succeeded."""
    started_s = time.monotonic()
    yield
    log.info(message, extra={"took_s": round(time.monotonic() - started_s, 2)})


def configure_logging(level: str, *, service: str = "", instance_id: str = "") -> None:
    """Send all logs to stderr as JSON lines; calling it again replaces the set-up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service, instance_id))
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, JsonFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for chatty in ("nats", "opentelemetry", "asyncio", "grpc", "httpx"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, service, ids, extras, exception."""

    def __init__(self, service: str, instance_id: str) -> None:
        super().__init__()
        self._identity = {"service": service, "instance_id": instance_id}

    def format(self, record: logging.LogRecord) -> str:
        millis = int(record.msecs)
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{millis:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._identity,
            **_ids(),
        }
        for key, value in record.__dict__.items():
            if key not in _STANDARD_FIELDS and not key.startswith("_"):
                line.setdefault(key, value)
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = describe_exception(record.exc_info[1])
            line["traceback"] = _frames(record.exc_info[2])
        return json.dumps(line, ensure_ascii=False, default=str)


def _ids() -> dict[str, str]:
    ids = {}
    if request_id := _request_id.get():
        ids["request_id"] = request_id
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        ids["trace_id"] = f"{span.trace_id:032x}"
    return ids


def describe_exception(error: BaseException) -> str:
    """Type and text of an error and its cause; types whose text quotes their input go without."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(parts) < 3:
        quotes_input = isinstance(seen, (ValueError, LookupError, SyntaxError))
        text = "" if quotes_input else str(seen)[:_MAX_ERROR_CHARS]
        parts.append(f"{type(seen).__name__}: {text}" if text else type(seen).__name__)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return " <- ".join(parts)


def _frames(tb: TracebackType | None) -> list[str]:
    frames = traceback.extract_tb(tb)[-_MAX_FRAMES:]
    return [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
