"""Which entry of DIFFERENCES.md explains that we accept, refuse or set something else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Case = dict[str, Any]
Predicate = Callable[[Case], bool]

REFERENCE_FIELDS = {
    "chat": "model messages frequency_penalty presence_penalty logprobs top_logprobs max_tokens n "
    "stream stream_options temperature top_p response_format tools tool_choice "
    "parallel_tool_calls stop seed thinking reasoning_effort",
    "responses": "model input instructions top_logprobs max_output_tokens stream temperature top_p "
    "tools tool_choice user reasoning text",
    "messages": "model messages max_tokens stream temperature top_p tools tool_choice "
    "stop_sequences thinking metadata output_config system",
}


def body_of(case: Case) -> Any:
    """The body as JSON values; None when it is none."""
    if "body" in case:
        return case["body"]
    try:
        return json.loads(case["body_raw"])
    except ValueError:
        return None


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _objects(item)
    elif isinstance(value, list):
        for item in value:
            yield from _objects(item)


def _always(_case: Case) -> bool:
    return True


def _is_int(case: Case, field: str) -> bool:
    return isinstance(body_of(case).get(field), int)


def _has(**fields: Any) -> Predicate:
    """Some object in the body has these members."""
    return lambda case: any(
        all(key in o and o[key] == value for key, value in fields.items())
        for o in _objects(body_of(case))
    )


def _has_type(*types: str) -> Predicate:
    return lambda case: any(o.get("type") in types for o in _objects(body_of(case)))


def _speaks_after_calls(case: Case) -> bool:
    """Text stands between a call and its result, and every call has its result."""
    objects = list(_objects(body_of(case)))
    calls = {o.get("call_id", o.get("id")) for o in objects if _kind(o) in _CALLS}
    results = {o.get("call_id", o.get("tool_use_id")) for o in objects if _kind(o) in _RESULTS}
    return bool(calls) and calls == results


_CALLS = ("function_call", "custom_tool_call", "tool_search_call", "tool_use")
_RESULTS = (
    "function_call_output",
    "custom_tool_call_output",
    "tool_search_output",
    "tool_result",
)


def _kind(value: dict[str, Any]) -> str:
    kind = value.get("type")
    return kind if isinstance(kind, str) else ""


@dataclass(frozen=True, slots=True)
class AcceptRule:
    """We accept what the reference refuses with such a message."""

    entry: str
    message: re.Pattern[str]
    applies: Predicate = _always


def _accept(entry: str, message: str, applies: Predicate = _always) -> AcceptRule:
    return AcceptRule(entry, re.compile(message), applies)


_STRICT = (
    r"Invalid tool parameters schema|Invalid json schema : |one of `type`, `anyOf`, `\$ref`|"
    r"[Rr]equired propert|additionalProperties should not|An object with no properties|"
    r"Duplicate required property|Cannot use strict tool with non-strict"
)
ACCEPT_RULES = (
    _accept("D-REQ-08", r"Thinking mode does not support this tool_choice"),
    _accept("D-REQ-14", r"expected string or map", lambda c: _is_int(c, "reasoning_effort")),
    _accept("D-REQ-15", _STRICT, _has(strict=True)),
    _accept("D-REQ-25", r"response_format should not be used with tools"),
    _accept("D-REQ-16", r"must be passed back to the API", lambda c: bool(c.get("options"))),
    _accept("D-REQ-17", r"unknown variant `developer`"),
    _accept("D-REQ-18", r"Unsupported custom tool"),
    _accept("D-REQ-18", r"server tools are not supported", _has_type("custom")),
    _accept("D-REQ-19", r"Invalid n value"),
    _accept("D-REQ-20", r"Invalid top_p value", lambda c: body_of(c).get("top_p") == 0),
    _accept("D-REQ-21", r"were found without|No tool output found", _speaks_after_calls),
    _accept("D-REQ-22", r"expected one of `low`, `medium`, `high`$", _has_type("web_search")),
    _accept(
        "D-REQ-23", r"unknown variant `(allowed_tools|refusal|redacted_thinking|search_result)`"
    ),
)


def explain_accepted(case: Case) -> str | None:
    """Why we accept a case that the reference refuses; None = no reason is known."""
    message = case["expect"]["message"]
    for rule in ACCEPT_RULES:
        if rule.message.search(message) and rule.applies(case):
            return rule.entry
    return None


def explain_refused(case: Case, problems: Sequence[str]) -> str | None:
    """Why we refuse a case that the reference accepts: every problem must have the same entry."""
    entries = {_explain_problem(case, problem) for problem in problems}
    return entries.pop() if len(entries) == 1 else None


def _explain_problem(case: Case, problem: str) -> str | None:
    path, _, message = problem.partition(": ")
    if isinstance(_at(body_of(case), path), list) and re.search("object|dictionary", message):
        return "D-REQ-30"
    if re.match(r"\w*", path)[0] not in REFERENCE_FIELDS[case["proto"]].split():  # type: ignore[index]
        return "D-REQ-31"
    if path.startswith("tool_choice") and not case["expect"]["conversation"]["tools"]:
        return "D-REQ-32"
    if case["expect"].get("model_version") == "v4" and "defer_loading" in message:
        return "D-REQ-34"
    if "can't be enforced" in message:
        return "D-REQ-35"
    if re.search(r"not supported|no files are kept|only stored responses have items", message):
        return "D-REQ-33"
    return None


def _at(value: Any, path: str) -> Any:
    """What stands at a field path; None when there is nothing."""
    try:
        for step in re.findall(r"[^.\[\]]+", path):
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    return value


_PLACEHOLDER = re.compile(r"\[Unsupported (?:Document|document type: [^\]]*)\]")


def explain_field(case: Case, field: str, ours: Any, theirs: Any) -> str | None:
    """Why something in an accepted request is not as in the reference."""
    if field == "prompt":
        return _explain_prompt(case, ours, theirs)
    if field == "temperature" and body_of(case).get("top_p") == 0:
        return "D-REQ-20"
    return None


def _explain_prompt(case: Case, ours: str, theirs: str) -> str | None:
    if _is_lone_prefix(case) and ours.endswith(theirs.rpartition("</think>")[2]):
        return "D-REQ-05"
    if _PLACEHOLDER.search(theirs):
        pieces = map(re.escape, _PLACEHOLDER.split(theirs))
        return "D-REQ-24" if re.fullmatch(".*".join(pieces), ours, re.DOTALL) else None
    return None


def _is_lone_prefix(case: Case) -> bool:
    messages = body_of(case).get("messages", [])
    return len(messages) == 1 and bool(messages[0].get("prefix"))
