"""`rorqual trace`: one request as a tree of spans with milliseconds, from the local trace files."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rorqual_cli.problems import CliError

REQUEST_ID = "rorqual.request_id"
_WRITTEN_AFTER_S = 2.0
"""Spans are in the files by then: services write theirs about once a second."""
_HIDDEN_ATTRIBUTES = frozenset({REQUEST_ID})


@dataclass(frozen=True)
class Span:
    """One line of a trace file."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    start_unix_ns: int
    end_unix_ns: int
    attributes: dict[str, Any]
    is_error: bool

    @property
    def request_id(self) -> str:
        return str(self.attributes.get(REQUEST_ID, ""))


def trace(home: Path, wanted: str | None) -> int:
    """Print the tree of a trace id, a request id, or the newest request.

    Raises: CliError when there is none.
    """
    spans = _written_trace(home / "traces", wanted)
    if not spans:
        what = f"no trace of {wanted}" if wanted else "no trace"
        raise CliError(
            f"{what} in {home / 'traces'}", "spans are written about a second after they end"
        )
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in tree_lines(spans):
        print(_cut(line, width))
    return 0


def _cut(line: str, width: int | None) -> str:
    """A tree is read by its left edge: on a terminal no line goes on below itself."""
    return line if width is None or len(line) <= width else line[: width - 1] + "…"


def _written_trace(directory: Path, wanted: str | None) -> list[Span]:
    """The trace, read again a little later when spans of it may not be written yet: its newest one
    has only just ended, or the parent of one is missing."""
    spans = find_trace(directory, wanted)
    age_s = time.time() - max((span.end_unix_ns for span in spans), default=time.time_ns()) / 1e9
    wait_s = _WRITTEN_AFTER_S if _has_gaps(spans) else _WRITTEN_AFTER_S - age_s
    if wait_s > 0:
        time.sleep(min(_WRITTEN_AFTER_S, wait_s))
        spans = find_trace(directory, wanted)
    return spans


def _has_gaps(spans: list[Span]) -> bool:
    known = {span.span_id for span in spans} | {""}
    return any(span.parent_id not in known for span in spans)


def read_spans(directory: Path, text: str = "") -> Iterator[Span]:
    """Spans of the directory's files, rotated ones too, whose line contains `text`; unreadable
    lines are left out."""
    for path in sorted(directory.glob("*.jsonl*")):
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                span = _span(line) if text in line else None
                if span is not None:
                    yield span


def _span(line: str) -> Span | None:
    try:
        record = json.loads(line)
        return Span(
            trace_id=record["trace_id"],
            span_id=record["span_id"],
            parent_id=record.get("parent_id") or "",
            name=record["name"],
            service=str(record.get("service", "")).removeprefix("rorqual-"),
            start_unix_ns=int(record["start_unix_ns"]),
            end_unix_ns=int(record["end_unix_ns"]),
            attributes=dict(record.get("attributes") or {}),
            is_error=record.get("status") == "ERROR",
        )
    except (ValueError, KeyError, TypeError):
        return None


def find_trace(directory: Path, wanted: str | None) -> list[Span]:
    """The spans of one trace: by trace id, by request id, or the newest that has a request id.

    Files may hold gigabytes: they are read twice, and no other trace is kept.
    """
    trace_id = _newest_trace_id(directory) if wanted is None else _trace_id_of(directory, wanted)
    if trace_id is None:
        return []
    return [span for span in read_spans(directory, trace_id) if span.trace_id == trace_id]


def _newest_trace_id(directory: Path) -> str | None:
    started_ns: dict[str, int] = {}
    for span in read_spans(directory, REQUEST_ID):
        if span.request_id:
            known_ns = started_ns.get(span.trace_id, span.start_unix_ns)
            started_ns[span.trace_id] = min(known_ns, span.start_unix_ns)
    return max(started_ns, key=lambda trace_id: started_ns[trace_id], default=None)


def _trace_id_of(directory: Path, wanted: str) -> str | None:
    matching = (s for s in read_spans(directory, wanted) if wanted in (s.trace_id, s.request_id))
    return next((span.trace_id for span in matching), None)


def tree_lines(spans: list[Span]) -> list[str]:
    """One line a span: tree, name, service, start and duration in ms, attributes.

    Spans whose parent was not recorded stand at the top.
    """
    known = {span.span_id for span in spans}
    children: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda s: (s.start_unix_ns, s.end_unix_ns, s.span_id)):
        children[span.parent_id if span.parent_id in known else ""].append(span)
    origin_ns = min(span.start_unix_ns for span in spans)
    rows = [_row(span, tree, origin_ns) for span, tree in _walk(children)]
    width = max(len(row[0]) for row in rows)
    request_ids = sorted({span.request_id for span in spans} - {""})
    total_ms = (max(s.end_unix_ns for s in spans) - origin_ns) / 1e6
    head = f"trace {spans[0].trace_id}  request {', '.join(request_ids) or '-'}"
    lines = [f"{head}  {len(spans)} spans  {total_ms:.1f} ms"]
    return lines + [f"{left.ljust(width)}  {right}" for left, right in rows]


def _walk(children: dict[str, list[Span]]) -> Iterator[tuple[Span, str]]:
    """Spans in tree order, each with the lines drawn before its name. Iterative: a chain of spans
    may be longer than the stack is deep."""
    stack = [(span, "", True) for span in reversed(children[""])]
    while stack:
        span, indent, is_root = stack.pop()
        yield span, indent
        below = children.get(span.span_id, [])
        base = "" if is_root else indent.replace("├─ ", "│  ").replace("└─ ", "   ")
        for number, child in enumerate(reversed(below)):
            branch = "└─ " if number == 0 else "├─ "
            stack.append((child, base + branch, False))


def _row(span: Span, tree: str, origin_ns: int) -> tuple[str, str]:
    start_ms = (span.start_unix_ns - origin_ns) / 1e6
    duration_ms = (span.end_unix_ns - span.start_unix_ns) / 1e6
    mark = " ERROR" if span.is_error else ""
    shown = [
        f"{key.removeprefix('rorqual.')}={_shown(value)}"
        for key, value in sorted(span.attributes.items())
        if key not in _HIDDEN_ATTRIBUTES
    ]
    left = f"{tree}{span.name} [{span.service}]{mark}"
    right = f"{start_ms:10.2f} ms  +{duration_ms:9.2f} ms  {' '.join(shown)}"
    return left, right.rstrip()


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
