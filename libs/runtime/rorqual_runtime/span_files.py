"""Trace files under home/traces, read back: one line a span."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REQUEST_ID = "rorqual.request_id"


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


def read_spans(directory: Path, text: str = "", *, tail_bytes: int | None = None) -> Iterator[Span]:
    """Spans of the directory's files, rotated ones too, whose line contains `text`; unreadable
    lines are left out. tail_bytes: of each file only its newest bytes, about so many."""
    for path in sorted(directory.glob("*.jsonl*")):
        with contextlib.suppress(FileNotFoundError):  # rotated just now
            yield from _read_file(path, text, tail_bytes)


def _read_file(path: Path, text: str, tail_bytes: int | None) -> Iterator[Span]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        if tail_bytes is not None:
            lines.seek(max(0, os.fstat(lines.fileno()).st_size - tail_bytes))
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


def find_trace(directory: Path, wanted: str | None, *, tail_bytes: int | None = None) -> list[Span]:
    """The spans of one trace: by trace id, by request id, or the newest that has a request id.

    Files may hold gigabytes: they are read twice, and no other trace is kept. tail_bytes: of each
    file only its newest bytes are read.
    """
    if wanted is None:
        trace_id = _newest_trace_id(directory, tail_bytes)
    else:
        trace_id = _trace_id_of(directory, wanted, tail_bytes)
    if trace_id is None:
        return []
    spans = read_spans(directory, trace_id, tail_bytes=tail_bytes)
    return [span for span in spans if span.trace_id == trace_id]


def _newest_trace_id(directory: Path, tail_bytes: int | None) -> str | None:
    started_ns: dict[str, int] = {}
    for span in read_spans(directory, REQUEST_ID, tail_bytes=tail_bytes):
        if span.request_id and _serves(span):
            known_ns = started_ns.get(span.trace_id, span.start_unix_ns)
            started_ns[span.trace_id] = min(known_ns, span.start_unix_ns)
    return max(started_ns, key=lambda trace_id: started_ns[trace_id], default=None)


def _trace_id_of(directory: Path, wanted: str, tail_bytes: int | None) -> str | None:
    found = None
    for span in read_spans(directory, wanted, tail_bytes=tail_bytes):
        if wanted in (span.trace_id, span.request_id):
            found = found or span.trace_id
            if _serves(span):
                return span.trace_id
    return found


def _serves(span: Span) -> bool:
    """Is of a request's own trace: who asks about a request beside it begins a trace elsewhere."""
    return span.service == "gateway" or bool(span.parent_id)


@dataclass(frozen=True)
class TracedRequest:
    """A request as its outermost span tells it."""

    trace_id: str
    request_id: str
    name: str
    start_unix_ns: int
    duration_ms: float
    is_error: bool


def newest_requests(directory: Path, *, limit: int, tail_bytes: int) -> list[TracedRequest]:
    """The last requests a gateway has answered, the newest first; of each file only its newest
    bytes are read."""
    found = [
        TracedRequest(
            trace_id=span.trace_id,
            request_id=span.request_id,
            name=span.name,
            start_unix_ns=span.start_unix_ns,
            duration_ms=(span.end_unix_ns - span.start_unix_ns) / 1e6,
            is_error=span.is_error,
        )
        for span in read_spans(directory, '"rorqual-gateway"', tail_bytes=tail_bytes)
        if span.service == "gateway" and span.request_id
    ]
    return sorted(found, key=lambda request: -request.start_unix_ns)[:limit]
