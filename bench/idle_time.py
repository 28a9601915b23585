"""From spans: for how long a prefill instance had nothing to do while a prompt waited."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rorqual_runtime.span_files import Span

Interval = tuple[float, float]


@dataclass(frozen=True)
class IdleTime:
    """Of one load."""

    waiting_s: float
    """In which at least one prompt waited, beyond its grace."""
    idle_s: float
    """Of it, in which at least one instance had no prompt in hand."""
    longest_s: float
    """Longest such stretch."""


def idle_while_waiting(
    spans: Iterable[Span], instance_ids: Sequence[str], grace_s: float
) -> IdleTime:
    """A prompt waits from grace_s after it was submitted until an instance has it; an instance is
    busy from there until the prompt is handed over. grace_s: what messages may take."""
    traces: dict[str, dict[str, Span]] = {}
    for span in spans:
        if span.service == "prefill":
            traces.setdefault(span.trace_id, {})[span.name] = span
    waiting: list[Interval] = []
    busy: dict[str, list[Interval]] = {instance_id: [] for instance_id in instance_ids}
    for names in traces.values():
        queue, assign = names.get("prefill.queue"), names.get("prefill.assign")
        if queue is None or assign is None:
            continue
        taken_s = assign.start_unix_ns / 1e9
        waiting.append((queue.start_unix_ns / 1e9 + grace_s, taken_s))
        done_s = max(span.end_unix_ns for span in names.values()) / 1e9
        busy[str(assign.attributes["rorqual.prefill_id"])].append((taken_s, done_s))
    waits = union(waiting)
    idle = union(
        gap for taken in busy.values() for one in waits for gap in without(one, union(taken))
    )
    return IdleTime(
        waiting_s=_length(waits),
        idle_s=_length(idle),
        longest_s=max((end - start for start, end in idle), default=0.0),
    )


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals in order that cover the same; empty ones are left out."""
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def without(interval: Interval, taken: Sequence[Interval]) -> list[Interval]:
    """What of an interval none of the disjoint, ordered ones covers."""
    left: list[Interval] = []
    at, end = interval
    for start, stop in taken:
        if stop <= at or start >= end:
            continue
        if start > at:
            left.append((at, start))
        at = max(at, stop)
    if at < end:
        left.append((at, end))
    return left


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)
