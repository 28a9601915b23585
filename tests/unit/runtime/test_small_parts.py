"""Subjects, cancelled ids, manual clock, deadlines, logs, trace files."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import logging
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from rorqual_runtime import context, subjects
from rorqual_runtime.cancelled import CancelledIds
from rorqual_runtime.clock import ManualClock
from rorqual_runtime.errors import DeadlineExceeded
from rorqual_runtime.logs import JsonFormatter, bind_request_id
from rorqual_runtime.settings import RuntimeSettings
from rorqual_runtime.telemetry import JsonLinesExporter, open_telemetry


def test_all_subjects_differ_and_share_the_prefix() -> None:
    made = []
    for name, function in inspect.getmembers(subjects, inspect.isfunction):
        if name.startswith("_") or name == "is_token":
            continue
        made.append(function(*["abc", "def"][: len(inspect.signature(function).parameters)]))
    assert len(made) == len(set(made)) >= 20
    assert all(subject.startswith("rorqual.v1.") for subject in made)


@pytest.mark.parametrize("token", ["", "a.b", "a b", ">", "naïve"])
def test_a_subject_never_takes_a_bad_token(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        subjects.recipe_tokens(token)


async def test_cancelled_ids_are_forgotten_after_their_time() -> None:
    clock = ManualClock()
    ids = CancelledIds(clock)
    ids.add("a")
    await clock.advance(59)
    ids.add("b")
    assert "a" in ids
    await clock.advance(2)
    assert "a" not in ids
    assert "b" in ids
    assert len(ids) == 1


@given(st.lists(st.sampled_from("abcdefghij"), max_size=50), st.integers(1, 5))
def test_cancelled_ids_stay_bounded_and_keep_the_newest(added: list[str], bound: int) -> None:
    ids = CancelledIds(ManualClock(), max_ids=bound)
    for request_id in added:
        ids.add(request_id)
    newest = list(dict.fromkeys(reversed(added)))[:bound]
    assert len(ids) == len(newest)
    assert all(request_id in ids for request_id in newest)


async def test_manual_clock_wakes_in_order() -> None:
    clock, woken = ManualClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.monotonic_s()))

    tasks = [asyncio.create_task(sleeper(s)) for s in (3, 1, 2)]
    await asyncio.sleep(0)
    await clock.advance(2.5)
    assert woken == [(1, 1), (2, 2)]
    await clock.advance(1)
    await asyncio.gather(*tasks)
    assert woken[-1] == (3, 3)


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


def _logged(action: object) -> dict[str, object]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter("router", "router-1"))
    logger = logging.getLogger("test.logs")
    logger.propagate = False
    logger.addHandler(handler)
    try:
        action(logger)  # type: ignore[operator]
    finally:
        logger.removeHandler(handler)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    return dict(json.loads(lines[0]))


def test_a_log_line_carries_identity_request_id_and_extras() -> None:
    def action(logger: logging.Logger) -> None:
        with bind_request_id("req-7"):
            logger.warning("placed", extra={"decode_id": "decode-1"})

    line = _logged(action)
    assert line["message"] == "placed"
    assert line["service"] == "router"
    assert line["request_id"] == "req-7"
    assert line["decode_id"] == "decode-1"


def test_a_logged_exception_does_not_quote_its_input() -> None:
    def action(logger: logging.Logger) -> None:
        try:
            int("the user's secret")
        except ValueError:
            logger.exception("failed")

    line = _logged(action)
    assert "secret" not in json.dumps(line)
    assert line["exception"] == "ValueError"
    assert line["traceback"]


def test_spans_end_up_as_json_lines(tmp_path: Path) -> None:
    settings = RuntimeSettings(home=tmp_path)
    telemetry = open_telemetry(settings, "router", instance_id="router-1", version="0.1.0")
    with telemetry.tracer.start_as_current_span("router.submit") as parent:
        parent.set_attribute("gen_ai.request.model", "m")
        with telemetry.tracer.start_as_current_span("router.place"):
            pass
    telemetry.close()
    lines = (tmp_path / "traces" / "router-1.jsonl").read_text().splitlines()
    child, root = (json.loads(line) for line in lines)
    assert child["trace_id"] == root["trace_id"]
    assert child["parent_id"] == root["span_id"]
    assert root["parent_id"] == ""
    assert root["service"] == "rorqual-router"
    assert root["attributes"] == {"gen_ai.request.model": "m"}
    assert root["start_unix_ns"] <= child["start_unix_ns"] <= child["end_unix_ns"]


def test_the_trace_file_is_bounded(tmp_path: Path) -> None:
    telemetry = open_telemetry(
        RuntimeSettings(home=tmp_path / "unused"), "x", instance_id="x", version="0.1.0"
    )
    span = telemetry.tracer.start_span("a")
    span.end()
    path = tmp_path / "x.jsonl"
    exporter = JsonLinesExporter(path, max_bytes=2000)
    for _ in range(50):
        exporter.export([span])  # type: ignore[list-item]
    exporter.shutdown()
    telemetry.close()
    files = list(tmp_path.glob("x.jsonl*"))
    assert len(files) == 2
    assert all(file.stat().st_size <= 2000 for file in files)
