"""The response object: what an answer repeats of its request, and what became of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rorqual_recipe.json_text import compact_json
from rorqual_recipe.protocols.notes import Notes
from rorqual_recipe.protocols.responses.schema import ResponsesRequest
from rorqual_recipe.sealing import NO_BINDING, SealBinding, Sealer

MAX_ECHO_CHARS = 64 << 10
_TOOL_DEFAULTS: dict[str, tuple[str, ...]] = {
    "function": ("description", "parameters", "strict"),
    "namespace": ("description",),
    "tool_search": ("execution", "description", "parameters"),
    "web_search": ("search_context_size", "user_location"),
}


@dataclass(frozen=True, slots=True)
class ResponsesEcho:
    """What the writer of one answer needs of its request.

    fields: the response object's members that repeat the request.
    items: the conversation up to the answer, as items with ids; kept when the answer is stored.
    num_earlier: how many of the items belong to earlier responses.
    sealer: set when reasoning is to be sealed for the client.
    searches_tools: calls of `tool_search` are searches that the client makes.
    """

    fields: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]] = ()
    num_earlier: int = 0
    store: bool = False
    sealer: Sealer | None = None
    binding: SealBinding = NO_BINDING
    shows_logprobs: bool = False
    searches_tools: bool = False


def echoed_fields(
    request: ResponsesRequest,
    text_format: Mapping[str, Any],
    service_tier: str,
    *,
    store: bool,
    notes: Notes,
) -> dict[str, Any]:
    """Members that repeat the request, defaults filled in; what is too long is left out."""
    reasoning = request.reasoning
    return {
        "instructions": _short(request.instructions, "instructions", None, notes),
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": service_tier,
        "store": store,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {
            "format": _short(dict(text_format), "text.format", {"type": "text"}, notes),
            "verbosity": request.text.verbosity if request.text else None,
        },
        "tool_choice": "auto" if request.tool_choice is None else request.tool_choice,
        "tools": _short([_tool(tool) for tool in request.tools or ()], "tools", [], notes),
        "top_logprobs": request.top_logprobs or 0,
        "truncation": request.truncation or "disabled",
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "presence_penalty": request.presence_penalty or 0.0,
        "user": request.user,
        "metadata": request.metadata or {},
    }


def _short(value: Any, name: str, instead: Any, notes: Notes) -> Any:
    if len(compact_json(value)) <= MAX_ECHO_CHARS:
        return value
    notes.warn(name, f"too long to be repeated in the answer (over {MAX_ECHO_CHARS} characters)")
    return instead


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as clients expect it back: members they may leave out are null."""
    absent = dict.fromkeys(_TOOL_DEFAULTS.get(tool["type"], ()))
    inner = tool.get("tools") if tool["type"] == "namespace" else None
    return {
        **tool,
        **{name: None for name in absent if name not in tool},
        **({"tools": [_tool(entry) for entry in inner]} if inner else {}),
    }


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far an answer has come. status: in_progress, completed, incomplete or failed."""

    status: str
    output: Sequence[Mapping[str, Any]] = ()
    usage: Mapping[str, Any] | None = None
    incomplete_reason: str | None = None
    error: Mapping[str, Any] | None = None
    completed_at_unix_s: int | None = None
    warnings: Sequence[str] = ()


def response_object(
    response_id: str, created_at_unix_s: int, model: str, fields: Mapping[str, Any], now: Outcome
) -> dict[str, Any]:
    """The response as clients see it."""
    reason = now.incomplete_reason
    body: dict[str, Any] = {
        "id": response_id,
        "object": "response",
        "created_at": created_at_unix_s,
        "status": now.status,
        "background": False,
        "completed_at": now.completed_at_unix_s,
        "content_filters": None,
        "error": now.error,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": model,
        "moderation": None,
        "output": list(now.output),
        "usage": now.usage,
        **fields,
    }
    if now.warnings:
        body["warnings"] = list(now.warnings)
    return body
