"""Which entry of DIFFERENCES.md explains that we accept, refuse or set something else."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.vectors.reference import rendered

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


def _has_number_as_effort(case: Case) -> bool:
    names = ("reasoning_effort", "effort")
    return any(isinstance(o.get(name), int) for o in _objects(body_of(case)) for name in names)


def _has_empty_answer(case: Case) -> bool:
    """A message of the assistant has nothing in it."""
    messages = body_of(case)["messages"]
    return any(m.get("role") == "assistant" and not m.get("content") for m in messages)


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
    r"Invalid tool parameters schema|Invalid json schema ?: |one of `type`, `anyOf`, `\$ref`|"
    r"[Rr]equired propert|additionalProperties should not|An object with no properties|"
    r"Duplicate required property|top level of the json schema|Cannot use strict tool with"
)
ACCEPT_RULES = (
    _accept("D-REQ-08", r"Thinking mode does not support this tool_choice"),
    _accept("D-REQ-13", r"Invalid max_tokens", lambda c: "max_completion_tokens" in body_of(c)),
    _accept("D-REQ-14", r"expected string or map", lambda c: _has_number_as_effort(c)),
    _accept("D-REQ-44", r"ool names .*must be unique", _has_type("tool_search_output")),
    _accept("D-REQ-11", r"must contain the word 'json'", _has_type("tool_search_output")),
    _accept("D-REQ-47", r"got 'type: null'", _has(parameters={})),
    _accept(
        "D-REQ-48", r"all messages must have non-empty content", lambda c: _has_empty_answer(c)
    ),
    _accept("D-REQ-52", r"logprobs must be set", lambda c: body_of(c).get("top_logprobs") == 0),
    _accept("D-REQ-49", r"Pointer .* does not exist"),
    _accept("D-REQ-42", r"no function named '[^']*::"),
    _accept("D-REQ-40", r"floating point .*expected u32", lambda c: c["proto"] == "messages"),
    _accept("D-REQ-15", _STRICT, _has(strict=True)),
    _accept("D-REQ-25", r"response_format should not be used with tools"),
    _accept("D-REQ-16", r"must be passed back to the API", lambda c: bool(c.get("options"))),
    _accept("D-REQ-53", r"Server tools are not supported", lambda c: bool(c.get("options"))),
    _accept("D-REQ-17", r"unknown variant `developer`"),
    _accept("D-REQ-18", r"Unsupported custom tool|custom tools are not allowed inside"),
    _accept("D-REQ-18", r"server tools are not supported", _has_type("custom")),
    _accept("D-REQ-19", r"Invalid n value"),
    _accept("D-REQ-20", r"Invalid top_p value", lambda c: body_of(c).get("top_p") == 0),
    _accept("D-REQ-21", r"were found without|No tool output found", _speaks_after_calls),
    _accept(
        "D-REQ-22",
        r"`medium`, `high`$|string or map|single key",
        _has_type("web_search"),
    ),
    _accept("D-REQ-23", r"expected a map", _has_type("tool_search_call")),
    _accept("D-REQ-23", r"file must have a file_id or file_data", _has_type("file")),
    _accept("D-REQ-50", r"expected u64", lambda c: body_of(c).get("seed", 0) < 0),
    _accept("D-REQ-51", r"null, expected variant identifier", _has(type=None)),
    _accept("D-REQ-51", r"null, expected internally tagged", _has(format=None)),
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
    """Why we refuse a case that the reference accepts: every problem must have an entry."""
    entries = [_explain_problem(case, problem) for problem in problems]
    return None if None in entries else "+".join(sorted({str(entry) for entry in entries}))


def _explain_problem(case: Case, problem: str) -> str | None:
    path, _, message = problem.partition(": ")
    value, is_v4 = _at(body_of(case), path), case["expect"].get("model_version") == "v4"
    if isinstance(value, list) and re.search("object|dictionary", message):
        return "D-REQ-30"
    if isinstance(value, dict) and "must be one of" in message:
        return "D-REQ-30"
    if path.startswith("tool_choice") and not case["expect"]["conversation"]["tools"]:
        return "D-REQ-32"
    if is_v4 and "defer_loading" in message:
        return "D-REQ-34"
    if is_v4 and _CALL_PAIRS.search(message) and _SEARCHES(case):
        return "D-REQ-11"
    for entry, pattern in _REFUSALS:
        if re.search(pattern, problem):
            return entry
    if re.search(r"parameters|schema", path):
        return "D-REQ-36"
    return "D-REQ-31" if reference_ignores(case, path) else None


_SEARCHES = _has_type("tool_search_call", "tool_search_output")
_CALL_PAIRS = re.compile("Duplicate|No tool (call|output) found")
_REFUSALS = (
    ("D-REQ-35", r"can't be enforced"),
    ("D-REQ-33", r"not supported|no files are kept|only stored responses have items"),
    ("D-REQ-33", r"'document' can't stand here"),
    ("D-REQ-33", r"unknown (item|tool|part|block) type|a namespace holds"),
    ("D-REQ-38", r"output: must be a string"),
    ("D-REQ-37", r"tool names must be unique"),
    ("D-REQ-38", r"must hold at least one|at least 1 character"),
    ("D-REQ-38", r"name: must (not be empty|be 1 to)|(file_data|output|^input): field required"),
    ("D-REQ-39", r"must be an http|can't hold images|image.* stand here"),
    ("D-REQ-39", r"base64|source|image_url: field required"),
)


def reference_ignores(case: Case, path: str) -> bool:
    """Whether the reference's prompt is the same without what stands at a path (or around it)."""
    field = re.match(r"\w*", path)
    if field and field[0] not in REFERENCE_FIELDS[case["proto"]].split():
        return True
    steps: list[str | int] = [
        int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", path)
    ]
    if _at(body_of(case), path) is None and len(steps) > 1:
        steps = steps[:-1]
    body = _without(body_of(case), steps)
    return body is not None and rendered(case["proto"], body) == case["expect"].get("prompt")


def _without(body: Any, steps: list[str | int]) -> Any:
    changed = copy.deepcopy(body)
    place = changed
    try:
        for step in steps[:-1]:
            place = place[step]
        del place[steps[-1]]
    except (KeyError, IndexError, TypeError):
        return None
    return changed


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
    if re.fullmatch(r"<｜begin▁of▁sentence｜><｜Assistant｜>(<think>|</think>)", theirs):
        return "D-REQ-41"
    if _with_marks(theirs) == ours and _has(namespace="")(case):
        return "D-REQ-46"
    if _EMPTY_ANSWER.sub(r"\1", theirs) == ours and _has_empty_answer(case):
        return "D-REQ-48"
    has_more = theirs.count(_LINE) > ours.count(_LINE) or _RENAMED.search(theirs)
    if has_more and _without_tools(ours) == _without_tools(theirs):
        return "D-REQ-44"
    if _CUSTOM_NULLS.sub(r"\1", ours) == theirs:
        return "D-REQ-45"
    if _is_lone_prefix(case) and ours.endswith(theirs.rpartition("</think>")[2]):
        return "D-REQ-05"
    if _PLACEHOLDER.search(theirs):
        pieces = map(re.escape, _PLACEHOLDER.split(theirs))
        return "D-REQ-24" if re.fullmatch(".*".join(pieces), ours, re.DOTALL) else None
    return None


_EMPTY_ANSWER = re.compile(r"<｜Assistant｜></think><｜end▁of▁sentence｜>(<｜Assistant｜>.{0,9})$")
_LINE = '{"name": "'
_RENAMED = re.compile(r'\{"name": "[^"]*_\d+", ')
_CUSTOM_NULLS = re.compile(
    r'("type":"custom","name":"[^"]*"),"description":null,"parameters":null,"strict":null'
)


def _with_marks(prompt: str) -> str:
    """A prompt whose calls are of no namespace."""
    return re.sub(r'(invoke name=")(?:__|::)', r"\1", prompt)


def _without_tools(prompt: str) -> str:
    """A prompt without the lines that declare tools."""
    return re.sub(r'\n?\{"name": "[^\n]*\}(?=\n|<｜|$)', "", prompt)


def _is_lone_prefix(case: Case) -> bool:
    messages = body_of(case).get("messages", [])
    return len(messages) == 1 and bool(messages[0].get("prefix"))
