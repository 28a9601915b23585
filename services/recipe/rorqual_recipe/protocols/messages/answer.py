"""What streamed and whole answers of the Messages API have in common."""

from typing import Any

from pydantic_core import from_json

from rorqual_recipe.json_text import compact_json
from rorqual_recipe.output.events import AnswerFinished, FinishReason, ToolCallEnded
from rorqual_recipe.protocols.base import AnswerFacts, TokenUsage

_STOP_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.CONTENT_FILTER: "refusal",
}


def message_head(facts: AnswerFacts) -> dict[str, Any]:
    """The first fields of a message."""
    return {
        "id": f"msg_{facts.request_id}",
        "type": "message",
        "role": "assistant",
        "model": facts.model,
    }


def stop_fields(finished: AnswerFinished | None) -> dict[str, str | None]:
    """Why the answer ended; nulls before it has."""
    if finished is None:
        return {"stop_reason": None, "stop_sequence": None}
    if finished.reason is FinishReason.STOP and finished.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": finished.stop_string}
    return {"stop_reason": _STOP_REASONS[finished.reason], "stop_sequence": None}


def usage_object(usage: TokenUsage, tier: str, *, is_final: bool) -> dict[str, Any]:
    """Anthropic's usage: input tokens are those that no cache held. tier: see `tier_of`."""
    shown: dict[str, Any] = {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens if is_final else 0,
        "service_tier": tier,
        **usage.miss_fields,
    }
    if is_final:
        shown["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return shown


def call_warning(index: int, ended: ToolCallEnded) -> str | None:
    """What the caller should know about the input of a call, in the block of this index."""
    if ended.is_cut:
        return f"content[{index}].input: the answer ended inside of it"
    return f"content[{index}].input: {ended.problem}" if ended.problem else None


def input_fields(arguments: str) -> str:
    """`"input":...` of a call, in the model's own spelling where that is valid JSON.

    Else what could be read of it, and all of it as text in `partial_json`: a caller sees at once
    that the input is not what the model meant to say.
    """
    if not arguments:
        return '"input":{}'
    if _read(arguments, partial=False) is not None:
        return f'"input":{arguments}'
    readable = _read(arguments, partial=True)
    readable = readable if isinstance(readable, dict) else {}
    return f'"input":{compact_json(readable)},"partial_json":{compact_json(arguments)}'


def _read(text: str, *, partial: bool) -> Any:
    """The value; None when it can't be read (or is null, which is no input either)."""
    try:
        return from_json(text, allow_inf_nan=False, allow_partial=partial)
    except ValueError:
        return None
