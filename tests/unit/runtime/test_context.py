"""Deadlines and trace context as headers."""

from __future__ import annotations

import time

import pytest
from opentelemetry import trace
from rorqual_runtime import context
from rorqual_runtime.errors import DeadlineExceeded


def test_the_inherited_deadline_wins_when_it_is_nearer() -> None:
    now = time.monotonic()
    with context.inherit_deadline(now + 1):
        assert context.effective_deadline_s(60) == now + 1
        assert context.effective_deadline_s(0.1) < now + 1
    with context.inherit_deadline(now - 1), pytest.raises(DeadlineExceeded):
        context.effective_deadline_s(60)


@pytest.mark.parametrize("value", ["soon", "", "12:00"])
def test_a_malformed_deadline_counts_as_none(value: str) -> None:
    headers = {context.TIMEOUT_HEADER: value, context.DEADLINE_HEADER: "1"}
    envelope = context.message_context("s", headers)
    assert envelope.deadline_s is None
    assert envelope.remaining_s(default=3.0) == 3.0


def test_what_was_long_under_way_is_late_and_a_clock_that_was_set_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headers, sent_unix_s = context.request_headers(20.0), time.time()

    def left_s(moved_s: float) -> float:
        monkeypatch.setattr(time, "time", lambda: sent_unix_s + moved_s)
        return context.message_context("s", headers).remaining_s(default=99.0)

    assert left_s(1.0) == pytest.approx(19.0, abs=5.0)
    assert left_s(10.0) == pytest.approx(10.0, abs=5.0)
    assert left_s(25.0) == 0.0
    assert left_s(90.0) == pytest.approx(20.0, abs=5.0)
    assert left_s(-90.0) == pytest.approx(20.0, abs=5.0)


def test_a_malformed_traceparent_starts_a_new_trace() -> None:
    parent = context.trace_context({"traceparent": "00-zz-11-01"})
    assert not trace.get_current_span(parent).get_span_context().is_valid
