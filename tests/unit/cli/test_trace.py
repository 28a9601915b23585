"""`rorqual trace` turns trace files into one tree with milliseconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rorqual_cli.problems import CliError
from rorqual_cli.trace import trace, tree_lines
from rorqual_runtime.span_files import find_trace, newest_requests, read_spans


def span(
    span_id: str, parent_id: str, name: str, start_ms: float, end_ms: float, **more: object
) -> str:
    record = {
        "trace_id": more.pop("trace_id", "t1"),
        "span_id": span_id,
        "parent_id": parent_id,
        "name": name,
        "service": f"rorqual-{name.partition('.')[0]}",
        "start_unix_ns": int(start_ms * 1e6),
        "end_unix_ns": int(end_ms * 1e6),
        "attributes": more.pop("attributes", {}),
        "status": more.pop("status", "UNSET"),
    }
    return json.dumps(record)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    traces = tmp_path / "traces"
    traces.mkdir()
    lines = {
        "gateway-1.jsonl": [
            span("a", "", "gateway.chat", 1000, 1100, attributes={"rorqual.request_id": "r1"}),
            "{half a line",
        ],
        "router-1.jsonl.1": [span("b", "a", "router.submit", 1001, 1002.5, attributes={"n": 1})],
        "decode-1.jsonl": [
            span("d", "c", "decode.generate", 1010, 1090, status="ERROR"),
            span("x", "", "gateway.chat", 5000, 5001, trace_id="t2"),
        ],
        "prefill-1.jsonl": [span("c", "b", "prefill.compute", 1003, 1010)],
    }
    for name, content in lines.items():
        (traces / name).write_text("\n".join(content) + "\n")
    return tmp_path


def test_a_request_is_found_by_trace_id_request_id_and_as_the_newest(home: Path) -> None:
    for wanted in ("t1", "r1", None):
        assert {s.span_id for s in find_trace(home / "traces", wanted)} == {"a", "b", "c", "d"}


def test_who_asks_about_a_request_does_not_stand_for_it(home: Path) -> None:
    """As recipe does when it has heard nothing for a while; decode's file is read first."""
    about = {"rorqual.request_id": "r1"}
    asked = span("q", "", "decode.resend", 1050, 1051, trace_id="t0", attributes=about)
    with (home / "traces" / "decode-1.jsonl").open("a") as lines:
        lines.write(asked + "\n")
    for wanted in ("r1", None):
        assert {s.trace_id for s in find_trace(home / "traces", wanted)} == {"t1"}
    assert [s.span_id for s in find_trace(home / "traces", "t0")] == ["q"]


def test_the_newest_requests_are_those_that_a_gateway_answered(home: Path) -> None:
    found = newest_requests(home / "traces", limit=10, tail_bytes=1 << 20)
    assert [(one.request_id, one.trace_id, one.duration_ms) for one in found] == [("r1", "t1", 100)]
    assert newest_requests(home / "traces", limit=10, tail_bytes=20) == []


def test_the_tree_shows_depth_start_duration_and_errors(home: Path) -> None:
    head, *rows = tree_lines(find_trace(home / "traces", "t1"))
    assert head == "trace t1  request r1  4 spans  100.0 ms"
    assert [row.split(" [")[0] for row in rows] == [
        "gateway.chat",
        "└─ router.submit",
        "   └─ prefill.compute",
        "      └─ decode.generate",
    ]
    assert "1.00 ms  +     1.50 ms  n=1" in rows[1]
    assert "[decode] ERROR" in rows[3]


def test_siblings_are_in_time_order_and_orphans_stand_at_the_top(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    lines = [
        span("late", "root", "b", 20, 30),
        span("early", "root", "a", 10, 15),
        span("orphan", "never-written", "o", 40, 50),
        span("root", "", "r", 0, 60),
    ]
    (traces / "f.jsonl").write_text("\n".join(lines))
    rows = tree_lines(list(read_spans(traces)))[1:]
    assert [row.split(" [")[0] for row in rows] == ["r", "├─ a", "└─ b", "o"]


def test_a_very_deep_chain_is_no_problem(tmp_path: Path) -> None:
    lines = [span(str(i), str(i - 1) if i else "", "s", i, i + 1) for i in range(3000)]
    (tmp_path / "f.jsonl").write_text("\n".join(lines))
    assert len(tree_lines(list(read_spans(tmp_path)))) == 3001


def test_on_a_terminal_no_line_is_wider_than_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    trace(home, "t1")
    shown = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in shown) == 60
    assert any(line.endswith("…") for line in shown)


def test_an_unknown_id_is_a_clear_error(home: Path) -> None:
    with pytest.raises(CliError, match="no trace of nobody"):
        trace(home, "nobody")


def test_a_span_written_late_is_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The root ends last: without it the newest span known may be minutes old."""
    (home / "traces" / "gateway-1.jsonl").unlink()

    def write_root(_seconds: float) -> None:
        root = span("a", "", "gateway.chat", 1000, 1100, attributes={"rorqual.request_id": "r1"})
        (home / "traces" / "gateway-1.jsonl").write_text(root + "\n")

    monkeypatch.setattr("time.sleep", write_root)
    trace(home, "t1")
    assert "4 spans" in capsys.readouterr().out
