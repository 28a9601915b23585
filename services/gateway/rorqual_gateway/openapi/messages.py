"""The Messages API."""

from rorqual_gateway.openapi.parts import (
    ANTHROPIC_ERROR,
    BOOLEAN,
    EFFORT,
    INTEGER,
    OBJECT,
    POSITIVE,
    STOP,
    STRING,
    TOP_P,
    Operation,
    Schema,
    answers,
    body_of,
    listed,
)

_BLOCKS: Schema = {"anyOf": [STRING, listed({"type": "object", "required": ["type"]})]}
_PROMPT: Schema = {
    "model": STRING,
    "messages": {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "required": ["role", "content"],
            "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": _BLOCKS},
        },
    },
    "system": _BLOCKS,
    "tools": listed({"type": "object", "required": ["name"]}),
    "tool_choice": {
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {"enum": ["auto", "any", "none", "tool"]},
            "name": STRING,
            "disable_parallel_tool_use": BOOLEAN,
        },
    },
    "thinking": {
        "type": "object",
        "properties": {
            "type": {"enum": ["enabled", "disabled", "adaptive"]},
            "budget_tokens": INTEGER,
        },
    },
}
_BODY = body_of(
    "MessagesRequest",
    ["model", "messages", "max_tokens"],
    {
        **_PROMPT,
        "max_tokens": POSITIVE,
        "temperature": {"type": "number", "minimum": 0, "maximum": 1},
        "top_p": TOP_P,
        "top_k": {"type": "integer", "minimum": 0},
        "stop_sequences": STOP["anyOf"][1],
        "stream": {"type": "boolean", "default": False},
        "output_config": {"type": "object", "properties": {"effort": EFFORT, "format": OBJECT}},
        "metadata": OBJECT,
    },
)
_MESSAGE: Schema = {
    "type": "object",
    "title": "Message",
    "properties": {
        "id": STRING,
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": STRING,
        "content": listed(OBJECT),
        "stop_reason": {"type": ["string", "null"]},
        "stop_sequence": {"type": ["string", "null"]},
        "usage": OBJECT,
        "warnings": listed(STRING),
    },
}

MESSAGES = Operation(
    "Create a message",
    "createMessage",
    answers(_MESSAGE, ANTHROPIC_ERROR, streams=True),
    _BODY,
)
COUNT_TOKENS = Operation(
    "Count the tokens of a message's prompt",
    "countTokens",
    answers(
        {"type": "object", "properties": {"input_tokens": INTEGER}}, ANTHROPIC_ERROR, streams=False
    ),
    body_of("CountTokensRequest", ["model", "messages"], _PROMPT),
)
