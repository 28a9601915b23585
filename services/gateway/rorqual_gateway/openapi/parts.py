"""Pieces that several operations share: fields, errors, and the record of one operation."""

from dataclasses import dataclass, field
from typing import Any

Schema = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
OBJECT: Schema = {"type": "object"}
TEMPERATURE: Schema = {"type": "number", "minimum": 0, "maximum": 2}
TOP_P: Schema = {"type": "number", "minimum": 0, "maximum": 1}
POSITIVE: Schema = {"type": "integer", "minimum": 1}
STOP: Schema = {"anyOf": [STRING, {"type": "array", "items": STRING, "maxItems": 16}]}
EFFORT: Schema = {
    "enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra", None],
}


def _header(name: str, description: str) -> Schema:
    return {"name": name, "in": "header", "schema": STRING, "description": description}


COMING_BACK: list[Schema] = [
    _header(
        "Idempotency-Key",
        "The answer outlives its connection: the same request again gets it, under way or ended; "
        "its events have ids. At most 255 characters.",
    ),
    _header(
        "Last-Event-ID",
        "With Idempotency-Key, of a streamed answer: only what is behind the event with this id.",
    ),
]
"""Of every operation that generates."""


@dataclass(frozen=True, slots=True)
class Operation:
    """How one operation describes itself."""

    summary: str
    operation_id: str
    responses: Responses
    request_body: Schema = field(default_factory=dict)
    query_parameters: list[Schema] = field(default_factory=list)


def listed(items: Schema) -> Schema:
    """An array."""
    return {"type": "array", "items": items}


def body_of(title: str, required: list[str], properties: Schema) -> Schema:
    """A JSON request body; fields that are not named are accepted, and reported as ignored."""
    schema = {
        "type": "object",
        "title": title,
        "required": required,
        "additionalProperties": True,
        "properties": properties,
    }
    return {"required": True, "content": {"application/json": {"schema": schema}}}


OPENAI_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": STRING,
                "type": STRING,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
ANTHROPIC_ERROR: Schema = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": STRING, "message": STRING},
        },
    },
}
_ALWAYS = {
    400: "the request can't be served as it stands",
    401: "missing or unknown API key",
    404: "no such model or object",
    413: "the body is too large",
    429: "too many requests; see Retry-After",
    503: "draining, or a service is away; see Retry-After",
}
_GENERATED = {408: "no worker was free in time", 504: "no complete answer before the deadline"}


def errors(shape: Schema, *, generated: bool) -> Responses:
    """Every error an operation can answer with."""
    texts = {**_ALWAYS, **(_GENERATED if generated else {})}
    content = {"application/json": {"schema": shape}}
    return {status: {"description": text, "content": content} for status, text in texts.items()}


def answers(schema: Schema, shape: Schema, *, streams: bool) -> Responses:
    """The good answer of an operation, and its errors. streams: it may come as events."""
    content: Schema = {"application/json": {"schema": schema}}
    if streams:
        content["text/event-stream"] = {"schema": STRING}
    description = "the answer, or with `stream` its server-sent events" if streams else "the answer"
    good = {"description": description, "content": content}
    return {200: good, **errors(shape, generated=streams)}
