"""The Responses API."""

from rorqual_gateway.openapi.parts import (
    BOOLEAN,
    EFFORT,
    INTEGER,
    OBJECT,
    OPENAI_ERROR,
    POSITIVE,
    STRING,
    TEMPERATURE,
    TOP_P,
    Operation,
    Schema,
    answers,
    body_of,
    listed,
)

_BODY = body_of(
    "ResponseRequest",
    ["model"],
    {
        "model": STRING,
        "input": {"anyOf": [STRING, listed(OBJECT)]},
        "instructions": {"type": ["string", "null"]},
        "previous_response_id": {"type": ["string", "null"]},
        "store": {"type": "boolean", "default": True},
        "max_output_tokens": POSITIVE,
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "stream": {"type": "boolean", "default": False},
        "tools": listed({"type": "object", "required": ["type"]}),
        "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, OBJECT]},
        "parallel_tool_calls": {"type": "boolean", "default": True},
        "reasoning": {"type": "object", "properties": {"effort": EFFORT, "summary": STRING}},
        "text": {"type": "object", "properties": {"format": OBJECT, "verbosity": STRING}},
        "include": listed(STRING),
        "metadata": OBJECT,
        "user": STRING,
    },
)
_RESPONSE: Schema = {
    "type": "object",
    "title": "Response",
    "properties": {
        "id": STRING,
        "object": {"const": "response"},
        "created_at": INTEGER,
        "status": {"enum": ["completed", "in_progress", "incomplete", "failed"]},
        "model": STRING,
        "output": listed(OBJECT),
        "usage": OBJECT,
        "warnings": listed(STRING),
    },
}
_DELETED: Schema = {
    "type": "object",
    "properties": {"id": STRING, "object": {"const": "response"}, "deleted": BOOLEAN},
}
_ITEMS: Schema = {
    "type": "object",
    "properties": {
        "object": {"const": "list"},
        "data": listed(OBJECT),
        "first_id": {"type": ["string", "null"]},
        "last_id": {"type": ["string", "null"]},
        "has_more": BOOLEAN,
    },
}


def _query(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "schema": schema}


RESPONSES = Operation(
    "Create a response",
    "createResponse",
    answers(_RESPONSE, OPENAI_ERROR, streams=True),
    _BODY,
)
RESPONSE_RETRIEVE = Operation(
    "A stored response", "getResponse", answers(_RESPONSE, OPENAI_ERROR, streams=False)
)
RESPONSE_DELETE = Operation(
    "Forget a stored response", "deleteResponse", answers(_DELETED, OPENAI_ERROR, streams=False)
)
RESPONSE_INPUT_ITEMS = Operation(
    "What a stored response was asked",
    "listInputItems",
    answers(_ITEMS, OPENAI_ERROR, streams=False),
    query_parameters=[
        _query("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
        _query("order", {"enum": ["asc", "desc"], "default": "desc"}),
        _query("after", STRING),
    ],
)
