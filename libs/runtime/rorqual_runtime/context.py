"""What travels beside a message: deadline and trace context, as NATS headers.

Within a process a deadline is a time of its monotonic clock, so that nobody's is over, or never
comes, because a clock was set.
"""

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
TIMEOUT_HEADER = "Rorqual-Timeout-S"
"""What was left when it was sent."""
MAX_UNDER_WAY_S = 30.0
"""A message that seems to have been under way for longer, or to come from the future, tells of
clocks that differ: then it counts as sent just now."""

_propagator = TraceContextTextMapPropagator()
_deadline_s: ContextVar[float | None] = ContextVar("rorqual_deadline_s", default=None)


@dataclass(frozen=True, slots=True)
class MessageContext:
    """The envelope of a received message."""

    deadline_s: float | None = None
    """When the sender stops waiting (monotonic); None when it did not say."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """All NATS headers of the message."""
    subject: str = ""
    """The subject it was sent to."""

    def remaining_s(self, default: float) -> float:
        """Seconds until the deadline, never negative; `default` when there is none."""
        if self.deadline_s is None:
            return default
        return max(0.0, self.deadline_s - time.monotonic())


def current_deadline_s() -> float | None:
    """The deadline that code running now inherits from the request it serves (monotonic)."""
    return _deadline_s.get()


@contextlib.contextmanager
def inherit_deadline(deadline_s: float | None) -> Iterator[None]:
    """Requests made inside are bounded by this deadline (monotonic); None lifts the bound."""
    token = _deadline_s.set(deadline_s)
    try:
        yield
    finally:
        _deadline_s.reset(token)


def forget_deadline() -> None:
    """From here on, in this task or context, no deadline is inherited."""
    _deadline_s.set(None)


def effective_deadline_s(timeout_s: float) -> float:
    """Own timeout or the inherited deadline, whichever comes first (monotonic).

    Raises: DeadlineExceeded when it has passed already.
    """
    now_s = time.monotonic()
    deadline_s = now_s + timeout_s
    inherited_s = _deadline_s.get()
    if inherited_s is not None:
        deadline_s = min(deadline_s, inherited_s)
    if deadline_s <= now_s:
        raise DeadlineExceeded()
    return deadline_s


def trace_headers() -> dict[str, str]:
    """W3C `traceparent` (and `tracestate`) of the current span; empty outside any span."""
    headers: dict[str, str] = {}
    _propagator.inject(headers)
    return headers


def request_headers(timeout_s: float) -> dict[str, str]:
    """Headers of a request: trace context, and how long its answer is waited for."""
    headers = trace_headers()
    headers[TIMEOUT_HEADER] = f"{timeout_s:.6f}"
    headers[DEADLINE_HEADER] = f"{time.time() + timeout_s:.6f}"
    return headers


def message_context(subject: str, headers: Mapping[str, str] | None) -> MessageContext:
    """The envelope of a message; a deadline that is no number counts as none."""
    if not headers:
        return MessageContext(subject=subject)
    deadline_s = None
    with contextlib.suppress(KeyError, ValueError):
        timeout_s, deadline_unix_s = float(headers[TIMEOUT_HEADER]), float(headers[DEADLINE_HEADER])
        left_s = _left_s(timeout_s, deadline_unix_s - time.time())
        deadline_s = time.monotonic() + left_s
    return MessageContext(deadline_s, headers, subject)


def _left_s(timeout_s: float, left_by_clock_s: float) -> float:
    """Of the timeout that a message came with."""
    under_way_s = timeout_s - left_by_clock_s
    return left_by_clock_s if 0 <= under_way_s <= MAX_UNDER_WAY_S else timeout_s


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
