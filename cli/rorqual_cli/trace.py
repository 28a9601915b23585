"""`rorqual trace`: one request as a tree of spans with milliseconds, from the local trace files."""

from __future__ import annotations

import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rorqual_runtime.span_files import REQUEST_ID, Span, find_trace

from rorqual_cli.problems import CliError

_WRITTEN_AFTER_S = 2.0
"""Spans are in the files by then: services write theirs about once a second."""
_HIDDEN_ATTRIBUTES = frozenset({REQUEST_ID})


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
