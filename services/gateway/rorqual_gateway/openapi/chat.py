"""Chat Completions and Completions. Bodies are checked by recipe; here they are documented."""

from rorqual_gateway.openapi.parts import (
    BOOLEAN,
    EFFORT,
    INTEGER,
    OBJECT,
    OPENAI_ERROR,
    POSITIVE,
    STOP,
    STRING,
    TEMPERATURE,
    TOP_P,
    Operation,
    Schema,
    answers,
    body_of,
    listed,
)

_CONTENT: Schema = {
    "anyOf": [STRING, listed({"type": "object", "required": ["type"]}), {"type": "null"}]
}
_TOOL_CALL: Schema = {
    "type": "object",
    "required": ["id", "type", "function"],
    "properties": {
        "id": STRING,
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "properties": {"name": STRING, "arguments": STRING},
        },
    },
}
MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool", "latest_reminder"]},
        "content": _CONTENT,
        "name": STRING,
        "tool_calls": listed(_TOOL_CALL),
        "tool_call_id": STRING,
        "reasoning_content": {"type": ["string", "null"]},
        "prefix": BOOLEAN,
    },
}
_TOOL: Schema = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,128}$"},
                "description": STRING,
                "parameters": OBJECT,
                "strict": BOOLEAN,
            },
        },
    },
}
_RESPONSE_FORMAT: Schema = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["text", "json_object", "json_schema", "regex"]},
        "json_schema": {
            "type": "object",
            "required": ["schema"],
            "properties": {"name": STRING, "schema": OBJECT, "strict": BOOLEAN},
        },
        "regex": STRING,
    },
}
_PENALTY: Schema = {"type": "number", "minimum": -2, "maximum": 2, "default": 0}
_SAMPLING: Schema = {
    "max_tokens": POSITIVE,
    "temperature": TEMPERATURE,
    "top_p": TOP_P,
    "top_k": {"type": "integer", "minimum": -1, "default": 0},
    "min_p": {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "default": 0},
    "frequency_penalty": _PENALTY,
    "presence_penalty": _PENALTY,
    "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "default": 1},
    "logit_bias": {"type": "object", "additionalProperties": {"type": "number"}},
    "min_tokens": {"type": "integer", "minimum": 0, "default": 0},
    "seed": INTEGER,
    "n": {"type": "integer", "minimum": 1, "maximum": 8, "default": 1},
    "stop": STOP,
    "stream": {"type": "boolean", "default": False},
    "stream_options": {
        "type": "object",
        "properties": {"include_usage": {"type": "boolean", "default": False}},
    },
    "ignore_eos": {"type": "boolean", "default": False},
    "cache_salt": {"type": "string", "maxLength": 256},
    "cache_ttl": {
        "anyOf": [
            {"type": "integer", "minimum": 1},
            {"type": "string", "pattern": "^[1-9][0-9]{0,8}[smhd]$"},
        ]
    },
    "user": STRING,
}
_CHAT_BODY = body_of(
    "ChatCompletionRequest",
    ["model", "messages"],
    {
        "model": STRING,
        "messages": {"type": "array", "minItems": 1, "items": MESSAGE},
        **_SAMPLING,
        "max_completion_tokens": POSITIVE,
        "response_format": _RESPONSE_FORMAT,
        "logprobs": {"type": "boolean", "default": False},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "tools": listed(_TOOL),
        "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, OBJECT]},
        "parallel_tool_calls": {"type": "boolean", "default": True},
        "reasoning_effort": EFFORT,
        "thinking": {
            "type": "object",
            "properties": {
                "type": {"enum": ["enabled", "disabled", "adaptive"]},
                "budget_tokens": INTEGER,
            },
        },
        "continue_final_message": BOOLEAN,
        "metadata": OBJECT,
        "store": BOOLEAN,
    },
)
_TEXT_BODY = body_of(
    "CompletionRequest",
    ["model", "prompt"],
    {
        "model": STRING,
        "prompt": {
            "anyOf": [STRING, listed(STRING), listed(INTEGER), listed(listed(INTEGER))],
        },
        **_SAMPLING,
        "logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "echo": {"const": False},
        "suffix": {"type": "null"},
    },
)
_USAGE: Schema = {
    "type": "object",
    "properties": {
        "prompt_tokens": INTEGER,
        "completion_tokens": INTEGER,
        "total_tokens": INTEGER,
        "prompt_tokens_details": {"type": "object", "properties": {"cached_tokens": INTEGER}},
        "completion_tokens_details": {
            "type": "object",
            "properties": {"reasoning_tokens": INTEGER},
        },
        "prompt_cache_hit_tokens": INTEGER,
        "prompt_cache_miss_tokens": INTEGER,
        "cache_miss_reason": {"type": "string"},
    },
}


def _completion(title: str, kind: str) -> Schema:
    return {
        "type": "object",
        "title": title,
        "properties": {
            "id": STRING,
            "object": {"const": kind},
            "created": INTEGER,
            "model": STRING,
            "system_fingerprint": {"type": ["string", "null"]},
            "choices": listed(OBJECT),
            "usage": _USAGE,
            "warnings": listed(STRING),
        },
    }


CHAT_COMPLETIONS = Operation(
    "Create a chat completion",
    "createChatCompletion",
    answers(_completion("ChatCompletion", "chat.completion"), OPENAI_ERROR, streams=True),
    _CHAT_BODY,
)
COMPLETIONS = Operation(
    "Continue a text",
    "createCompletion",
    answers(_completion("Completion", "text_completion"), OPENAI_ERROR, streams=True),
    _TEXT_BODY,
)
