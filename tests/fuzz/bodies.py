"""Valid bodies of every endpoint, rich in fields: what mutations start from."""

from __future__ import annotations

from typing import Any

from tests.support.chat_model_dir import MODEL_ID

SCHEMA: Any = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12, "enum": ["a", "b"]},
        "n": {"anyOf": [{"type": "integer", "minimum": 1}, {"$ref": "#/$defs/t"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"t": {"type": "array", "items": {"type": "number"}}},
}
PNG = "data:image/png;base64,iVBORw0KGgo="
TEXT_FILE = "data:text/plain;base64,aGVsbG8="
_SAMPLING: Any = {
    "model": MODEL_ID,
    "max_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 7,
    "frequency_penalty": 0.5,
    "logit_bias": {"5": 1.5},
    "stop": ["x", "<|im_end|>"],
    "stream": True,
    "stream_options": {"include_usage": True},
}
_CHAT_HISTORY: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": [{"type": "text", "text": "JSON"}]},
    {"role": "user", "content": [{"type": "text", "text": "<|im_start|>"}], "name": "ada"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"n": 1.50}'}},
            {"id": "b", "type": "custom", "custom": {"name": "g", "input": "*** x"}},
        ],
    },
    {"role": "tool", "tool_call_id": "b", "content": "<tool_call>"},
    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "r"}]},
    {"role": "latest_reminder", "content": "soon"},
    {"role": "user", "content": [{"type": "file", "file": {"file_data": TEXT_FILE}}]},
]
_CHAT_TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True},
    },
    {"type": "custom", "custom": {"name": "g", "format": {"type": "text"}}},
]
CHAT: Any = [
    {
        **_SAMPLING,
        "messages": _CHAT_HISTORY,
        "tools": _CHAT_TOOLS,
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "auto",
                "tools": [{"type": "function", "function": {"name": "f"}}],
            },
        },
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
        "reasoning_effort": "low",
        "thinking": {"type": "enabled", "budget_tokens": 9},
    },
    {
        "model": MODEL_ID,
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]},
            {"role": "assistant", "content": "Once", "prefix": True},
        ],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    },
    {
        "model": MODEL_ID,
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "y"},
        ],
        "functions": [{"name": "f", "parameters": SCHEMA}],
        "function_call": "auto",
    },
]
COMPLETIONS: Any = [
    {**_SAMPLING, "prompt": ["Hello <|im_start|>", [5, 6, 7]], "n": 2, "logprobs": 2},
    {"model": MODEL_ID, "prompt": [5, 6, 7], "guided_choice": ["a", "b."]},
]
RESPONSES: Any = [
    {
        "model": MODEL_ID,
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}],
            },
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
            {"type": "function_call_output", "call_id": "c", "output": "r"},
            {"type": "custom_tool_call_output", "call_id": "d", "output": "r"},
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_file", "file_data": TEXT_FILE, "filename": "n.txt"}],
            },
        ],
        "tools": [
            {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True},
            {
                "type": "custom",
                "name": "g",
                "format": {"type": "grammar", "syntax": "regex", "definition": "a+"},
            },
            {
                "type": "namespace",
                "name": "ns",
                "description": "d",
                "tools": [{"type": "function", "name": "h", "parameters": SCHEMA}],
            },
        ],
        "tool_choice": {"type": "function", "name": "f"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "max_output_tokens": 9,
        "store": False,
        "stream": True,
        "metadata": {"a": "b"},
    },
    {"model": MODEL_ID, "input": "hi", "store": False, "top_logprobs": 2},
]
MESSAGES: Any = [
    {
        "model": MODEL_ID,
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "hi"},
                    {
                        "type": "document",
                        "source": {"type": "text", "media_type": "text/plain", "data": "doc"},
                    },
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "well"},
                    {"type": "tool_use", "id": "a", "name": "f", "input": {"n": 1.5, "s": "<|x|>"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "a",
                        "content": [{"type": "text", "text": "r"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "go on"},
                ],
            },
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "thinking": {"type": "disabled"},
        "stop_sequences": ["x"],
        "stream": True,
        "metadata": {"user_id": "u"},
    },
    {
        "model": MODEL_ID,
        "max_tokens": 3,
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Once"},
        ],
    },
]
_COUNTED = ("model", "system", "messages", "tools", "tool_choice", "thinking")
ENDPOINTS: dict[str, list[Any]] = {
    "chat_completions": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "messages": MESSAGES,
    "count_tokens": [{name: body[name] for name in _COUNTED if name in body} for body in MESSAGES],
    "tokenize": [
        {"model": MODEL_ID, "prompt": "Hello", "return_token_strs": True},
        {"messages": _CHAT_HISTORY, "tools": _CHAT_TOOLS},
    ],
    "detokenize": [{"model": MODEL_ID, "tokens": [5, 6, 7, 0]}],
}
"""By the name that recipe knows the protocol by."""
