"""Bodies of each protocol in which every text a client can send holds look-alikes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.chat_model_dir import MODEL_ID
from tests.support.lookalikes import Speller

Body = dict[str, Any]
_STRANGE_NAMES = 0.05  # of tools, which most protocols refuse


def _name(speller: Speller, plain: str) -> str:
    return speller.text() if speller.rng.random() < _STRANGE_NAMES else plain


def _call_id(speller: Speller) -> str:
    return speller.text()[:60] or "c"


def _texts(speller: Speller, kind: str) -> str | list[Body]:
    """Content: one string, or parts."""
    if speller.rng.random() < 0.5:
        return speller.text()
    return [{"type": kind, "text": speller.text()} for _ in range(speller.rng.randint(1, 3))]


def chat_body(speller: Speller) -> Body:
    """Chat Completions."""
    rng = speller.rng
    name = _name(speller, "look_up")
    messages: list[Body] = [{"role": "system", "content": speller.text()}]
    for _ in range(rng.randint(1, 3)):
        messages += _chat_turn(speller, name)
    function = {"name": name, "description": speller.text(), "parameters": speller.schema()}
    schema = {"name": "shape", "description": speller.text(), "schema": speller.schema()}
    shape = {"type": "json_schema", "json_schema": schema}
    return {
        "model": MODEL_ID,
        "messages": messages,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": rng.choice(("auto", "none", "required")),
        "thinking": {"type": rng.choice(("enabled", "disabled"))},
        "stop": [speller.text()],
        "user": speller.text(),
        "metadata": {speller.text()[:60]: speller.text()},
        **({"response_format": shape} if rng.random() < 0.3 else {}),
    }


def _chat_turn(speller: Speller, name: str) -> list[Body]:
    call_id = _call_id(speller)
    call = {"name": name, "arguments": speller.arguments()}
    return [
        {"role": "user", "content": _texts(speller, "text"), "name": speller.text()[:60]},
        {
            "role": "assistant",
            "content": speller.maybe(speller.text),
            "reasoning_content": speller.text(),
            "tool_calls": [{"id": call_id, "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": _texts(speller, "text")},
        {"role": speller.rng.choice(("developer", "system", "user")), "content": speller.text()},
    ]


def messages_body(speller: Speller) -> Body:
    """Anthropic Messages."""
    rng = speller.rng
    name = _name(speller, "look_up")
    turns = [turn for _ in range(rng.randint(1, 3)) for turn in _messages_turn(speller, name)]
    question = {"role": "user", "content": _texts(speller, "text")}
    tool = {"name": name, "description": speller.text(), "input_schema": speller.schema()}
    return {
        "model": MODEL_ID,
        "max_tokens": 100,
        "system": _texts(speller, "text"),
        "messages": [*turns, question],
        "tools": [tool],
        "tool_choice": {"type": rng.choice(("auto", "any", "none"))},
        "stop_sequences": [speller.text()],
        "metadata": {"user_id": speller.text()},
    }


def _messages_turn(speller: Speller, name: str) -> list[Body]:
    call_id = _call_id(speller)
    arguments = json.loads(speller.object())
    answer = [
        {"type": "text", "text": speller.text()},
        {"type": "tool_use", "id": call_id, "name": name, "input": arguments},
    ]
    source = {"type": "text", "media_type": "text/plain", "data": speller.text()}
    document = {"type": "document", "source": source, "title": speller.text()}
    found = [{"type": "text", "text": speller.text()}]
    search = {"type": "search_result", "source": speller.text(), "title": speller.text()}
    return [
        {"role": "user", "content": [document, {**search, "content": found}, *found]},
        {"role": "assistant", "content": answer},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": call_id,
                    "content": _texts(speller, "text"),
                    "is_error": speller.rng.random() < 0.3,
                },
                {"type": "text", "text": speller.text()},
            ],
        },
        {"role": "assistant", "content": _texts(speller, "text")},
    ]


def responses_body(speller: Speller) -> Body:
    """OpenAI Responses."""
    rng = speller.rng
    name = _name(speller, "look_up")
    turns = [item for _ in range(rng.randint(1, 3)) for item in _responses_turn(speller, name)]
    question = {"role": "user", "content": _texts(speller, "input_text")}
    function = {"type": "function", "name": name, "description": speller.text()}
    format_ = {"type": "json_schema", "name": "shape", "schema": speller.schema()}
    return {
        "model": MODEL_ID,
        "instructions": speller.text(),
        "input": [*turns, question],
        "tools": [
            {**function, "parameters": speller.schema()},
            {"type": "custom", "name": "note", "description": speller.text()},
        ],
        "store": False,
        "user": speller.text(),
        **({"text": {"format": format_}} if rng.random() < 0.3 else {}),
    }


def _responses_turn(speller: Speller, name: str) -> list[Body]:
    first, second = _call_id(speller), _call_id(speller)
    thought = {"type": "reasoning_text", "text": speller.text()}
    call = {"type": "function_call", "call_id": first, "name": name}
    custom = {"type": "custom_tool_call", "call_id": second, "name": "note"}
    return [
        {"role": "user", "content": _texts(speller, "input_text")},
        {"type": "reasoning", "summary": [], "content": [thought]},
        {"role": "assistant", "content": _texts(speller, "output_text")},
        {**call, "arguments": speller.arguments()},
        {**custom, "input": speller.text()},
        {"type": "function_call_output", "call_id": first, "output": speller.text()},
        {"type": "custom_tool_call_output", "call_id": second, "output": speller.text()},
    ]


BODIES: dict[str, Callable[[Speller], Body]] = {
    "chat_completions": chat_body,
    "messages": messages_body,
    "responses": responses_body,
}
