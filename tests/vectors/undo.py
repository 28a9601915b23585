"""Deliberate differences undone: a request as the reference would have understood it.

When a request differs from the reference, each of these that applies is taken back. What is equal
then is explained by the ones that it takes; the rest is up to request_rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from rorqual_recipe.conversation import (
    ConstraintKind,
    Message,
    ParsedRequest,
    Role,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
    ToolKind,
)
from rorqual_recipe.encodings.message_parts import text_of
from rorqual_recipe.json_text import spaced_json

Case = dict[str, Any]
NOTHING = "\U0010fffe"
"""Stands for a text that prints nothing, but whose message is printed."""


@dataclass(frozen=True, slots=True)
class Undo:
    """entry: of DIFFERENCES.md. apply: gives the request back as it is where it does not apply."""

    entry: str
    apply: Callable[[ParsedRequest, Case], ParsedRequest]


def _version(case: Case) -> str:
    return str(case["expect"].get("model_version"))


def _each_message(
    parsed: ParsedRequest, change: Callable[[Message], Message | None]
) -> ParsedRequest:
    changed = (change(message) for message in parsed.conversation.messages)
    messages = tuple(message for message in changed if message is not None)
    return replace(parsed, conversation=replace(parsed.conversation, messages=messages))


def _conversation(parsed: ParsedRequest, **fields: Any) -> ParsedRequest:
    return replace(parsed, conversation=replace(parsed.conversation, **fields))


def _each_call(parsed: ParsedRequest, change: Callable[[ToolCall], ToolCall]) -> ParsedRequest:
    return _each_message(
        parsed, lambda m: replace(m, tool_calls=tuple(change(call) for call in m.tool_calls))
    )


def _arguments(parsed: ParsedRequest, case: Case) -> ParsedRequest:
    short = _version(case) == "v4"

    def change(call: ToolCall) -> ToolCall:
        if call.kind is ToolKind.CUSTOM:
            return call
        return replace(call, arguments=reserialised(call.arguments, short_exponents=short))

    return _each_call(parsed, change)


def reserialised(arguments: str, *, short_exponents: bool) -> str:
    """Arguments parsed and written anew, as the reference does it."""
    try:
        value = json.loads(arguments, parse_int=_int64, parse_float=_finite, parse_constant=_refuse)
    except _TooBig:
        return spaced_json({"arguments": arguments})
    except (ValueError, RecursionError):
        return arguments
    return spaced_json(value, short_exponents=short_exponents)


class _TooBig(Exception):
    """A number beyond the range of a double."""


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _TooBig
    return number


def _int64(text: str) -> float | int:
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 64 and text != "-0" else _finite(text)


def _reminders(parsed: ParsedRequest, case: Case) -> ParsedRequest:
    if _version(case) == "v4":
        return parsed
    messages: list[Message] = []
    for message in parsed.conversation.messages:
        follows = messages and messages[-1].role is message.role is Role.REMINDER
        if not follows:
            messages.append(message)
    return _conversation(parsed, messages=tuple(messages))


def _loop_reasoning(parsed: ParsedRequest, case: Case) -> ParsedRequest:
    if (case["expect"]["conversation"] or {}).get("tools"):
        return parsed
    return _each_message(
        parsed, lambda m: replace(m, reasoning=None) if m.tool_calls and not m.is_prefix else m
    )


def _empty_system(parsed: ParsedRequest, case: Case) -> ParsedRequest:
    if _version(case) == "v4" or case["proto"] == "chat":
        return parsed
    empty = (TextPart(NOTHING),)

    def change(message: Message) -> Message:
        says_nothing = not text_of(message) and not message.declared_tools
        is_empty = message.role is Role.SYSTEM and says_nothing
        return replace(message, parts=empty) if is_empty else message

    changed = _each_message(parsed, change)
    messages = changed.conversation.messages
    if (
        _is_empty_text(_body(case).get("system"))
        and messages[:1] == parsed.conversation.messages[:1]
    ):
        messages = (Message(Role.SYSTEM, empty), *messages)
    return _conversation(changed, messages=messages)


def _is_empty_text(content: Any) -> bool:
    """A string, or text blocks, in which nothing stands."""
    if isinstance(content, list):
        return all(_is_empty_text(block.get("text")) for block in content)
    return content == ""


def _call_order(parsed: ParsedRequest, case: Case) -> ParsedRequest:
    if _version(case) != "v4" and case["proto"] != "responses":
        return parsed

    def change(message: Message) -> Message:
        calls = sorted(message.tool_calls, key=lambda call: call.call_id)
        return replace(message, tool_calls=tuple(calls))

    return _each_message(parsed, change)


def _strict_schemas(parsed: ParsedRequest, case: Case) -> ParsedRequest:
    conversation = case["expect"]["conversation"] or {}
    rewritten = {t["name"]: t["parameters"] for t in conversation.get("tools", ()) if t["strict"]}

    def change(tool: Tool) -> Tool:
        return replace(tool, parameters=rewritten.get(tool.name, tool.parameters))

    return _conversation(parsed, tools=tuple(map(change, parsed.conversation.tools)))


def _schema_numbers(parsed: ParsedRequest, case: Case) -> ParsedRequest:
    def change(tool: Tool) -> Tool:
        return replace(tool, parameters=_renumbered(tool.parameters))

    conversation = parsed.conversation
    shape = conversation.response_format
    if shape is not None and shape.kind is ConstraintKind.JSON_SCHEMA:
        shape = replace(shape, source=json.dumps(_renumbered(json.loads(shape.source))))
    tools = tuple(map(change, conversation.tools))
    return _conversation(parsed, tools=tools, response_format=shape)


def _renumbered(schema: Any) -> Any:
    """A schema with its numbers as the reference has them."""
    return json.loads(json.dumps(schema), parse_int=_int64)


def _prefill(parsed: ParsedRequest, case: Case) -> ParsedRequest:
    if case["proto"] != "messages":
        return parsed
    return _each_message(parsed, lambda m: replace(m, is_prefix=False))


def _any_tool(parsed: ParsedRequest, case: Case) -> ParsedRequest:
    choice = _body(case).get("tool_choice")
    if case["proto"] != "messages" or not isinstance(choice, dict) or choice.get("type") != "any":
        return parsed
    return _conversation(parsed, tool_choice=ToolChoice())


def _search_on_v4(parsed: ParsedRequest, case: Case) -> ParsedRequest:
    if case["proto"] != "responses" or _version(case) != "v4":
        return parsed
    ids = {
        call.call_id
        for message in parsed.conversation.messages
        for call in message.tool_calls
        if call.name == "tool_search"
    }

    def change(message: Message) -> Message | None:
        if message.tool_call_id in ids or message.declared_tools:
            return None
        calls = tuple(call for call in message.tool_calls if call.call_id not in ids)
        silent = message.tool_calls and not calls and not message.parts and not message.reasoning
        return None if silent else replace(message, tool_calls=calls)

    declared = {tool.get("name") for tool in _body(case).get("tools") or ()}
    found = {tool for m in parsed.conversation.messages for tool in _keys(m.declared_tools)}
    found = {(namespace, name) for namespace, name in found if (namespace or name) not in declared}
    tools = tuple(
        tool
        for tool in parsed.conversation.tools
        if tool.name != "tool_search" and not found & set(_keys([tool]))
    )
    return _conversation(_each_message(parsed, change), tools=tools)


def _keys(tools: Iterable[Tool]) -> list[tuple[str, str]]:
    return [(tool.namespace, tool.name) for tool in tools]


def _shape(parsed: ParsedRequest, case: Case) -> ParsedRequest:
    if case["proto"] != "messages":
        return parsed
    return _conversation(parsed, response_format=None)


def _new_length_field(parsed: ParsedRequest, case: Case) -> ParsedRequest:
    body = _body(case)
    if case["proto"] != "chat" or body.get("max_completion_tokens") is None:
        return parsed
    sampling = replace(parsed.sampling, max_tokens=body.get("max_tokens"))
    return replace(parsed, sampling=sampling)


def _percent(parsed: ParsedRequest, case: Case) -> ParsedRequest:
    thinking = replace(parsed.conversation.thinking, effort_percent=None)
    return _conversation(parsed, thinking=thinking)


def _body(case: Case) -> dict[str, Any]:
    if "body" in case:
        return dict(case["body"])
    try:
        body = json.loads(case["body_raw"])
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _empty_blocks(parsed: ParsedRequest, case: Case) -> ParsedRequest:
    if _version(case) != "v4" or case["proto"] != "messages":
        return parsed

    def change(message: Message) -> Message:
        said = tuple(part for part in message.parts if part != TextPart(""))
        return replace(message, parts=said) if message.role is Role.USER else message

    return _each_message(parsed, change)


UNDOS = (
    Undo("D-REQ-01", _arguments),
    Undo("D-REQ-02", _reminders),
    Undo("D-REQ-03", _loop_reasoning),
    Undo("D-REQ-04", _call_order),
    Undo("D-REQ-06", _empty_system),
    Undo("D-REQ-07", _strict_schemas),
    Undo("D-REQ-43", _schema_numbers),
    Undo("D-REQ-09", _prefill),
    Undo("D-REQ-10", _any_tool),
    Undo("D-REQ-11", _search_on_v4),
    Undo("D-REQ-12", _shape),
    Undo("D-REQ-13", _new_length_field),
    Undo("D-REQ-14", _percent),
    Undo("D-REQ-26", _empty_blocks),
)
