"""Spans end up in a bounded file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from rorqual_runtime.settings import RuntimeSettings
from rorqual_runtime.telemetry import JsonLinesExporter, open_telemetry


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


def test_a_trace_file_that_somebody_removed_is_begun_anew(tmp_path: Path) -> None:
    telemetry = open_telemetry(RuntimeSettings(home=tmp_path), "x", instance_id="x", version="0")
    for name in ("first", "second"):
        telemetry.tracer.start_span(name).end()
        telemetry.flush()
        assert name in (tmp_path / "traces" / "x.jsonl").read_text()
        shutil.rmtree(tmp_path / "traces")
    telemetry.close()
