"""What travels beside a message: deadline and trace context, as NATS headers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rorqual_runtime.errors import DeadlineExceeded

DEADLINE_HEADER = "Rorqual-Deadline-Unix-S"

_propagator = TraceContextTextMapPropagator()
_deadline_unix_s: ContextVar[float | None] = ContextVar("rorqual_deadline_unix_s", default=None)


@dataclass(frozen=True, slots=True)
class MessageContext:
    """The envelope of a received message."""

    deadline_unix_s: float | None = None
    """When the sender stops waiting; None when it did not say."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """All NATS headers of the message."""
    subject: str = ""
    """The subject it was sent to."""

    def remaining_s(self, default: float) -> float:
        """Seconds until the deadline, never negative; `default` when there is none."""
        if self.deadline_unix_s is None:
            return default
        return max(0.0, self.deadline_unix_s - time.time())


def current_deadline_unix_s() -> float | None:
    """The deadline that code running now inherits from the request it serves."""
    return _deadline_unix_s.get()


@contextlib.contextmanager
def inherit_deadline(deadline_unix_s: float | None) -> Iterator[None]:
    """Requests made inside are bounded by this deadline; None lifts the bound."""
    token = _deadline_unix_s.set(deadline_unix_s)
    try:
        yield
    finally:
        _deadline_unix_s.reset(token)


def forget_deadline() -> None:
    """From here on, in this task or context, no deadline is inherited."""
    _deadline_unix_s.set(None)


def effective_deadline_unix_s(timeout_s: float) -> float:
    """Own timeout or the inherited deadline, whichever comes first.

    Raises: DeadlineExceeded when it has passed already.
    """
    now_unix_s = time.time()
    deadline_unix_s = now_unix_s + timeout_s
    inherited = _deadline_unix_s.get()
    if inherited is not None:
        deadline_unix_s = min(deadline_unix_s, inherited)
    if deadline_unix_s <= now_unix_s:
        raise DeadlineExceeded()
    return deadline_unix_s


def trace_headers() -> dict[str, str]:
    """W3C `traceparent` (and `tracestate`) of the current span; empty outside any span."""
    headers: dict[str, str] = {}
    _propagator.inject(headers)
    return headers


def request_headers(deadline_unix_s: float) -> dict[str, str]:
    """Headers of a request: trace context and deadline."""
    headers = trace_headers()
    headers[DEADLINE_HEADER] = f"{deadline_unix_s:.6f}"
    return headers


def message_context(subject: str, headers: Mapping[str, str] | None) -> MessageContext:
    """The envelope of a message; a deadline that is no number counts as none."""
    if not headers:
        return MessageContext(subject=subject)
    deadline_unix_s = None
    with contextlib.suppress(ValueError):
        text = headers.get(DEADLINE_HEADER)
        deadline_unix_s = float(text) if text else None
    return MessageContext(deadline_unix_s, headers, subject)


def trace_context(headers: Mapping[str, str] | None) -> Context:
    """The sender's trace context; a fresh root when the headers carry none."""
    return _propagator.extract(headers or {}, context=Context())


@contextlib.contextmanager
def attach(trace: Context) -> Iterator[None]:
    """Make a trace context current inside the block."""
    token = otel_context.attach(trace)
    try:
        yield
    finally:
        otel_context.detach(token)
