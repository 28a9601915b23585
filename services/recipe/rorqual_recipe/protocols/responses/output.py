"""Items of an answer, as they are listed in it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rorqual_recipe.output.events import TokenLogprob
from rorqual_recipe.protocols.base import TokenUsage
from rorqual_recipe.tokens.vocabulary import Vocabulary

_LEAST_LOGPROB = -9999.0


def reasoning_item(
    item_id: str, status: str, text: str | None, sealed: str | None
) -> dict[str, Any]:
    """What the model thought; text None = just begun."""
    content = [] if text is None else [reasoning_part(text)]
    item: dict[str, Any] = {"type": "reasoning", "id": item_id, "status": status}
    item |= {"content": content, "summary": []}
    return item if sealed is None else {**item, "encrypted_content": sealed}


def reasoning_part(text: str) -> dict[str, Any]:
    """Content of a reasoning item."""
    return {"type": "reasoning_text", "text": text}


def message_item(item_id: str, status: str, phase: str, content: Sequence[Any]) -> dict[str, Any]:
    """What the model said. phase: commentary when a call follows, else final_answer."""
    return {
        "type": "message",
        "id": item_id,
        "status": status,
        "role": "assistant",
        "phase": phase,
        "content": list(content),
    }


def text_part(text: str, logprobs: Sequence[Any]) -> dict[str, Any]:
    """Content of a message."""
    return {"type": "output_text", "annotations": [], "logprobs": list(logprobs), "text": text}


def call_item(
    kind: str, item_id: str, status: str, call: Mapping[str, str], arguments: str
) -> dict[str, Any]:
    """A call: function_call, custom_tool_call or tool_search_call."""
    item: dict[str, Any] = {"type": kind, "id": item_id, "status": status, **call}
    if kind == "custom_tool_call":
        return {**item, "input": arguments}
    if kind == "function_call":
        return {**item, "arguments": arguments}
    del item["name"]
    return {**item, "execution": "client", "arguments": _object_of(arguments)}


def _object_of(arguments: str) -> dict[str, Any]:
    try:
        value = json.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def usage_object(usage: TokenUsage) -> dict[str, Any]:
    """Usage of a response."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        **usage.miss_fields,
    }


def logprob_objects(
    entries: Sequence[TokenLogprob], vocabulary: Vocabulary
) -> list[dict[str, Any]]:
    """Log probabilities of tokens with their best alternatives."""
    return [
        {
            **_token(entry.token_id, entry.logprob, vocabulary),
            "top_logprobs": [_token(token, value, vocabulary) for token, value in entry.top],
        }
        for entry in entries
    ]


def _token(token_id: int, logprob: float, vocabulary: Vocabulary) -> dict[str, Any]:
    """Bytes that are no whole character are shown as escapes."""
    spelling = vocabulary.spelling_of(token_id)
    return {
        "token": spelling.decode("utf-8", errors="backslashreplace"),
        "logprob": max(logprob, _LEAST_LOGPROB),
        "bytes": list(spelling),
    }
