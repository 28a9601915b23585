"""Answers of all three protocols in one form, so that streams, bodies and both sides compare.

A form says what an answer means, not how it is cut: reasoning, content, calls, the end and usage.
Text before, between and behind calls is one content; arguments are compared as values where they
are JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Form = dict[str, Any]
Frame = tuple[str | None, dict[str, Any]]


def empty_form() -> Form:
    return {"reasoning": "", "content": "", "calls": [], "finish": None, "stop": None, "usage": {}}


def frames_of(data: bytes) -> list[Frame]:
    """Server-sent events, read; the final [DONE] left out."""
    frames: list[Frame] = []
    for block in data.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line]
        fields = dict(line.split(": ", 1) for line in lines)
        if fields and fields["data"] != "[DONE]":
            frames.append((fields.get("event"), json.loads(fields["data"])))
    return frames


def form_of_stream(protocol: str, frames: Iterable[Frame]) -> Form:
    """What the deltas of a stream add up to."""
    form = empty_form()
    reader = {"chat": _chat_chunk, "responses": _responses_event, "messages": _messages_event}
    for _, data in frames:
        reader[protocol](form, data)
    if protocol == "messages":
        for call in form["calls"]:
            call["arguments"] = call["arguments"] or "{}"
    return _finished(form)


def form_of_body(protocol: str, body: dict[str, Any]) -> Form:
    """What a whole answer says."""
    form = empty_form()
    {"chat": _chat_body, "responses": _responses_body, "messages": _messages_body}[protocol](
        form, body
    )
    return _finished(form)


def call_form(name: str, arguments: str, kind: str = "function", namespace: str = "") -> Form:
    return {"kind": kind, "name": name, "namespace": namespace, "arguments": arguments}


def _finished(form: Form) -> Form:
    for call in form["calls"]:
        call["arguments"] = as_value(call["arguments"])
    form["finish"] = "tool_calls" if form["calls"] and form["finish"] == "stop" else form["finish"]
    return form


def as_value(arguments: Any) -> Any:
    """Arguments as a value; text that is no JSON stays text."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments, parse_constant=_refuse)
    except ValueError:
        return arguments


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _chat_chunk(form: Form, data: dict[str, Any]) -> None:
    for choice in data["choices"]:
        delta = choice["delta"]
        form["content"] += delta.get("content") or ""
        form["reasoning"] += delta.get("reasoning_content") or ""
        for piece in delta.get("tool_calls") or ():
            _chat_call(form, piece)
        form["finish"] = choice["finish_reason"] or form["finish"]
    _chat_usage(form, data.get("usage"))


def _chat_call(form: Form, piece: dict[str, Any]) -> None:
    kind = "custom" if "custom" in piece else "function"
    body = piece[kind]
    if len(form["calls"]) == piece["index"]:
        form["calls"].append(call_form(body["name"], "", kind))
    form["calls"][piece["index"]]["arguments"] += body.get("input", body.get("arguments", ""))


def _chat_usage(form: Form, usage: dict[str, Any] | None) -> None:
    if usage:
        details = usage.get("completion_tokens_details") or {}
        form["usage"] = {
            "prompt": usage["prompt_tokens"],
            "cached": usage["prompt_tokens_details"]["cached_tokens"],
            "completion": usage["completion_tokens"],
            "reasoning": details.get("reasoning_tokens") or 0,
        }


def _chat_body(form: Form, body: dict[str, Any]) -> None:
    choice = body["choices"][0]
    message = choice["message"]
    form["content"] = message["content"] or ""
    form["reasoning"] = message.get("reasoning_content") or ""
    for index, call in enumerate(message.get("tool_calls") or ()):
        _chat_call(form, {**call, "index": index})
    form["finish"] = choice["finish_reason"]
    _chat_usage(form, body.get("usage"))


def _responses_event(form: Form, data: dict[str, Any]) -> None:
    kind = data["type"]
    if kind == "response.output_text.delta":
        form["content"] += data["delta"]
    elif kind == "response.reasoning_text.delta":
        form["reasoning"] += data["delta"]
    elif kind in (
        "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta",
    ):
        form["calls"][-1]["arguments"] += data["delta"]
    elif kind == "response.output_item.done" and data["item"]["type"] == "tool_search_call":
        form["calls"][-1]["arguments"] = data["item"]["arguments"]
    elif kind == "response.output_item.added" and data["item"]["type"].endswith("_call"):
        form["calls"].append({**_responses_call(data["item"]), "arguments": ""})
    elif kind in ("response.completed", "response.incomplete"):
        _responses_end(form, data["response"])


def _responses_call(item: dict[str, Any]) -> Form:
    kinds = {"custom_tool_call": "custom", "tool_search_call": "search"}
    arguments = item.get("input", item.get("arguments", ""))
    kind = kinds.get(item["type"], "function")
    return call_form(item.get("name", ""), arguments, kind, item.get("namespace") or "")


def _responses_end(form: Form, response: dict[str, Any]) -> None:
    reasons = {"max_output_tokens": "length", "content_filter": "content_filter"}
    details = response.get("incomplete_details") or {}
    form["finish"] = reasons.get(details.get("reason"), "stop")
    usage = response.get("usage")
    if usage:
        form["usage"] = {
            "prompt": usage["input_tokens"],
            "cached": usage["input_tokens_details"]["cached_tokens"],
            "completion": usage["output_tokens"],
            "reasoning": usage["output_tokens_details"]["reasoning_tokens"],
        }


def _responses_body(form: Form, body: dict[str, Any]) -> None:
    for item in body["output"]:
        if item["type"] == "message":
            form["content"] += "".join(part["text"] for part in item["content"])
        elif item["type"] == "reasoning":
            form["reasoning"] += "".join(part["text"] for part in item["content"])
        else:
            form["calls"].append(_responses_call(item))
    _responses_end(form, body)


_MESSAGES_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "refusal": "content_filter",
    "tool_use": "tool_calls",
}


def _messages_event(form: Form, data: dict[str, Any]) -> None:
    if data["type"] == "content_block_start" and data["content_block"]["type"] == "tool_use":
        form["calls"].append(call_form(data["content_block"]["name"], ""))
    elif data["type"] == "content_block_delta":
        delta = data["delta"]
        form["content"] += delta.get("text", "")
        form["reasoning"] += delta.get("thinking", "")
        if "partial_json" in delta:
            form["calls"][-1]["arguments"] += delta["partial_json"]
    elif data["type"] == "message_delta":
        _messages_end(form, data["delta"], data["usage"])


def _messages_end(form: Form, stop: dict[str, Any], usage: dict[str, Any]) -> None:
    form["finish"] = _MESSAGES_REASONS.get(stop["stop_reason"])
    form["stop"] = stop["stop_sequence"]
    form["usage"] = {
        "prompt": usage["input_tokens"] + usage["cache_read_input_tokens"],
        "cached": usage["cache_read_input_tokens"],
        "completion": usage["output_tokens"],
    }


def _messages_body(form: Form, body: dict[str, Any]) -> None:
    for block in body["content"]:
        if block["type"] == "text":
            form["content"] += block["text"]
        elif block["type"] == "thinking":
            form["reasoning"] += block["thinking"]
        else:
            arguments = block.get("partial_json", block["input"])
            form["calls"].append(call_form(block["name"], arguments))
    _messages_end(form, body, body["usage"])
