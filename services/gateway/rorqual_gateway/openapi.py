"""How the API describes itself. Bodies are checked by recipe; here they are documented."""

from typing import Any

_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "object", "required": ["type"]}},
                {"type": "null"},
            ]
        },
        "name": {"type": "string"},
        "tool_call_id": {"type": "string"},
    },
}

_RESPONSE_FORMAT = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["text", "json_object", "json_schema"]},
        "json_schema": {
            "type": "object",
            "required": ["schema"],
            "properties": {"name": {"type": "string"}, "schema": {"type": "object"}},
        },
    },
}

CHAT_REQUEST: dict[str, Any] = {
    "type": "object",
    "title": "ChatCompletionRequest",
    "required": ["model", "messages"],
    "additionalProperties": True,
    "properties": {
        "model": {"type": "string"},
        "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
        "max_tokens": {"type": "integer", "minimum": 1},
        "max_completion_tokens": {"type": "integer", "minimum": 1},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 1},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1, "default": 1},
        "top_k": {"type": "integer", "minimum": -1, "default": 0},
        "min_p": {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "default": 0},
        "seed": {"type": "integer"},
        "n": {"type": "integer", "minimum": 1, "maximum": 8, "default": 1},
        "stop": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "maxItems": 16},
            ]
        },
        "stream": {"type": "boolean", "default": False},
        "stream_options": {
            "type": "object",
            "properties": {"include_usage": {"type": "boolean", "default": False}},
        },
        "response_format": _RESPONSE_FORMAT,
        "logprobs": {"type": "boolean", "default": False},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "ignore_eos": {"type": "boolean", "default": False},
        "cache_salt": {"type": "string", "maxLength": 256},
        "user": {"type": "string"},
        "metadata": {"type": "object"},
    },
}

CHAT_REQUEST_BODY: dict[str, Any] = {
    "required": True,
    "content": {"application/json": {"schema": CHAT_REQUEST}},
}

_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

_USAGE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "prompt_tokens": {"type": "integer"},
        "completion_tokens": {"type": "integer"},
        "total_tokens": {"type": "integer"},
        "prompt_tokens_details": {
            "type": "object",
            "properties": {"cached_tokens": {"type": "integer"}},
        },
    },
}

_COMPLETION: dict[str, Any] = {
    "type": "object",
    "title": "ChatCompletion",
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "chat.completion"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "system_fingerprint": {"type": ["string", "null"]},
        "choices": {"type": "array", "items": {"type": "object"}},
        "usage": _USAGE,
    },
}


def _error(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ERROR}}}


ERRORS: dict[int | str, dict[str, Any]] = {
    401: _error("missing or unknown API key"),
    404: _error("no such model"),
    503: _error("draining, or a service is away; see Retry-After"),
}

CHAT_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "the completion, or with `stream` its chunks as server-sent events",
        "content": {
            "application/json": {"schema": _COMPLETION},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    },
    400: _error("the request can't be served as it stands"),
    **ERRORS,
    408: _error("no worker was free in time"),
    413: _error("the body is too large"),
    429: _error("too many requests; see Retry-After"),
    504: _error("no complete answer before the deadline"),
}
