"""Deadlines and trace context as headers."""

from __future__ import annotations

import time

import pytest
from opentelemetry import trace
from rorqual_runtime import context
from rorqual_runtime.errors import DeadlineExceeded


def test_the_inherited_deadline_wins_when_it_is_nearer() -> None:
    now = time.time()
    with context.inherit_deadline(now + 1):
        assert context.effective_deadline_unix_s(60) == now + 1
        assert context.effective_deadline_unix_s(0.1) < now + 1
    with context.inherit_deadline(now - 1), pytest.raises(DeadlineExceeded):
        context.effective_deadline_unix_s(60)


@pytest.mark.parametrize("value", ["soon", "", "12:00"])
def test_a_malformed_deadline_counts_as_none(value: str) -> None:
    envelope = context.message_context("s", {context.DEADLINE_HEADER: value})
    assert envelope.deadline_unix_s is None
    assert envelope.remaining_s(default=3.0) == 3.0


def test_a_malformed_traceparent_starts_a_new_trace() -> None:
    parent = context.trace_context({"traceparent": "00-zz-11-01"})
    assert not trace.get_current_span(parent).get_span_context().is_valid
