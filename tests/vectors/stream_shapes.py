"""The shape of answers: which events come in which order, and which members they have.

Compared where both sides say the same; equal neighbours in the order count once, since how deltas
are cut is not compared. A member that is null is another one than a member with a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from tests.vectors.outcome import Difference
from tests.vectors.stream_forms import Frame

EMPTY_THINKING = "D-SHP-01"
FIRST_CHUNK = "D-SHP-02"
USAGE_CHUNK = "D-SHP-03"
EMPTY_INPUT = "D-SHP-13"
_MEMBERS = (
    ("D-SHP-04", r"chat: -chunk\.usage=null"),
    ("D-SHP-05", r"chat: \+(chunk|body)\.usage\.completion_tokens_details(\.reasoning_tokens)?"),
    ("D-SHP-06", r"chat: (-(chunk|body)\.system_fingerprint=null|\+\w+\.system_fingerprint)"),
    ("D-SHP-07", r"\w+: \+[\w.]+\.warnings(\[\])?"),
    ("D-SHP-08", r"chat: \+body\.choices\[\]\.message\.(refusal=null|reasoning_content)"),
    ("D-SHP-09", r"messages: \+\w+\.usage\.output_tokens_details(\.thinking_tokens)?"),
    ("D-SHP-10", r"responses: \+[\w.]+\.usage\.input_tokens_details\.cache_write_tokens"),
    ("D-SHP-11", r"responses: -[\w.]+(\[\])?\.encrypted_content"),
    ("D-SHP-12", r"responses: [+-][\w.]+(\[\])?\.status=(completed|incomplete)"),
)
"""Entries by what they explain: + only ours has it, - only the reference has it."""
_REASONING_FIRST = "content=null reasoning_content role"
_USAGE = "usage"
_ECHOED = frozenset({"metadata", "reasoning", "text", "tool_choice", "tools"})
"""Members of a response that repeat the request."""


def compare_streams(
    protocol: str, ours: Sequence[Frame], theirs: Sequence[Frame]
) -> Iterator[Difference]:
    """What differs between two streams that mean the same."""
    theirs, dropped = _without_empty_thinking(theirs) if protocol == "messages" else (theirs, False)
    if dropped:  # with the ping that follows the first block
        ours, theirs = ([f for f in side if f[0] != "ping"] for side in (ours, theirs))
        yield Difference("shape: thinking block", "none", "an empty one", EMPTY_THINKING)
    if protocol == "messages":
        both = [_without_empty_input(side) for side in (ours, theirs)]
        dropped_here, dropped_there = len(ours) - len(both[0]), len(theirs) - len(both[1])
        if dropped_here != dropped_there:
            yield Difference("shape: deltas of {}", dropped_here, dropped_there, EMPTY_INPUT)
            ours, theirs = both
    if protocol == "chat" and theirs and _step(theirs[0]) == _REASONING_FIRST:
        yield Difference("shape: first chunk", _step(ours[0]), _REASONING_FIRST, FIRST_CHUNK)
        theirs = [ours[0], *theirs[1:]]
    yield from _compare_members(protocol, _stream_members(ours), _stream_members(theirs))
    our_order, their_order = ([step for step, _ in groupby(map(_step, s))] for s in (ours, theirs))
    if our_order == [*their_order, _USAGE]:
        yield Difference("shape: usage", "a chunk of its own", "in the last chunk", USAGE_CHUNK)
    elif our_order != their_order:
        yield Difference("shape: order", our_order, their_order)


def compare_bodies(
    protocol: str, ours: dict[str, Any], theirs: dict[str, Any]
) -> Iterator[Difference]:
    """What differs between two whole answers that mean the same."""
    if protocol == "messages":
        shown = [b for b in theirs["content"] if b["type"] != "thinking" or b["thinking"]]
        if len(shown) < len(theirs["content"]):
            yield Difference("shape: thinking block", "none", "an empty one", EMPTY_THINKING)
        theirs = {**theirs, "content": shown}
    yield from _compare_members(
        protocol, set(_members(ours, "body")), set(_members(theirs, "body"))
    )


def _compare_members(protocol: str, ours: set[str], theirs: set[str]) -> Iterator[Difference]:
    for sign, places in (("+", ours - theirs), ("-", theirs - ours)):
        for place in sorted(places):
            seen = ("there", "missing") if sign == "+" else ("missing", "there")
            yield Difference(f"shape: {place}", *seen, _explain(f"{protocol}: {sign}{place}"))


def _explain(change: str) -> str | None:
    return next((entry for entry, rule in _MEMBERS if re.fullmatch(rule, change)), None)


def _stream_members(frames: Sequence[Frame]) -> set[str]:
    return {
        member for _, data in frames for member in _members(data, str(data.get("type", "chunk")))
    }


def _members(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{at}.{name}" if inner is not None else f"{at}.{name}=null"
            if name == "status":
                yield f"{at}.{name}={inner}"
            if name not in _ECHOED:
                yield from _members(inner, f"{at}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _members(inner, f"{at}[]")


def _step(frame: Frame) -> str:
    """An event's place in the order: its type and that of what it carries."""
    event, data = frame
    if "choices" in data:
        return _chunk_step(data)
    carried = data.get("delta") or data.get("content_block") or data.get("item")
    kind = carried.get("type", "") if isinstance(carried, dict) else ""
    return " ".join(part for part in (event or "unnamed", kind) if part)


def _chunk_step(data: dict[str, Any]) -> str:
    if not data["choices"]:
        return _USAGE
    choice = data["choices"][0]
    delta = sorted(choice["delta"].items())
    names = [name if value is not None else f"{name}=null" for name, value in delta]
    return " ".join([*names, *([choice["finish_reason"]] if choice["finish_reason"] else ())])


def _without_empty_input(frames: Sequence[Frame]) -> list[Frame]:
    """The stream without deltas that say no more than the `{}` every call begins with."""
    pieces: dict[int, str] = {}
    for _, data in frames:
        if "partial_json" in data.get("delta", {}):
            pieces[data["index"]] = pieces.get(data["index"], "") + data["delta"]["partial_json"]
    empty = {index for index, text in pieces.items() if text in ("", "{}")}
    return [
        frame
        for frame in frames
        if frame[1].get("index") not in empty or "partial_json" not in frame[1].get("delta", {})
    ]


def _without_empty_thinking(frames: Sequence[Frame]) -> tuple[list[Frame], bool]:
    """The stream as if it did not open with a thinking block that says nothing."""
    block = [frame for frame in frames if frame[1].get("index") == 0]
    opened = block[0][1].get("content_block", {}) if block else {}
    said = [data["delta"] for _, data in block if "delta" in data]
    if opened.get("type") != "thinking" or any("thinking" in delta for delta in said):
        return list(frames), False
    return [frame for frame in frames if frame not in block], True
