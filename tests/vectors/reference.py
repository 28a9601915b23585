"""The reference's answer to a request, in the format of the files of cases."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import deepseek_recipe as reference

Case = dict[str, Any]
_REQUESTS = {
    "chat": reference.ChatCompletionRequest,
    "responses": reference.ResponsesRequest,
    "messages": reference.MessagesRequest,
}
_CONTEXT_TOKENS = 1 << 30


class Reference:
    """Runs the package over one tokenizer."""

    def __init__(self, tokenizer: Path) -> None:
        loaded = reference.Tokenizer.from_file(str(tokenizer))
        self._encodings = {
            "v4": reference.DeepseekV4Encoding().with_tokenizer(loaded),
            "v4.1": reference.DeepseekV41Encoding().with_tokenizer(loaded),
        }

    def answer(self, proto: str, body: Any) -> dict[str, Any]:
        """`expect` of a case."""
        text = json.dumps(body, ensure_ascii=False)
        try:
            request = _REQUESTS[proto](text)
        except ValueError as err:
            return {"ok": False, "stage": "parse", "message": str(err)}
        try:
            converted = request.convert(reference.ConversionOptions())
        except reference.ConversionError as err:
            return {"ok": False, "stage": "convert", "message": _message(err.body)}
        return {"ok": True, **self._converted(converted)}

    def _converted(self, request: Any) -> dict[str, Any]:
        is_v4 = request.model_version == reference.ModelVersion.DeepseekV4Pro
        version = "v4" if is_v4 else "v4.1"
        encoding, conversation = self._encodings[version], request.conversation
        rendered = encoding.render_conversation(conversation)
        ids = encoding.encode(conversation)
        return {
            "model_version": version,
            "stream": request.stream,
            "conversation": _conversation(conversation),
            "inference": _inference(request.inference_options),
            "parsing": _parsing(request.parsing_options),
            "special_ranges": [list(bounds) for bounds in rendered.special_ranges],
            "image_sources": [source.kind for source in rendered.image_sources],
            "prompt": rendered.prompt,
            "prompt_sha256": hashlib.sha256(rendered.prompt.encode()).hexdigest(),
            "token_ids": ids,
            "token_ids_sha256": hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
            "default_max_tokens": request.resolve_max_tokens(len(ids), _CONTEXT_TOKENS),
        }


def rendered(proto: str, body: Any) -> str | None:
    """The reference's prompt of a body; None when it refuses it."""
    try:
        request = _REQUESTS[proto](json.dumps(body, ensure_ascii=False))
        converted = request.convert(reference.ConversionOptions())
    except (ValueError, reference.ConversionError):
        return None
    is_v4 = converted.model_version == reference.ModelVersion.DeepseekV4Pro
    encoding = reference.DeepseekV4Encoding() if is_v4 else reference.DeepseekV41Encoding()
    return str(encoding.render_conversation(converted.conversation).prompt)


def _message(body: str) -> str:
    return str(json.loads(body)["error"]["message"])


def _conversation(conversation: Any) -> dict[str, Any]:
    tools = [
        {"name": tool.name, "parameters": tool.parameters, "strict": tool.strict}
        for tool in conversation.tools
    ]
    return {
        "tools": tools,
        "response_format": conversation.response_format,
        "response_schema": conversation.response_schema,
        "response_regex": conversation.response_regex,
    }


def _inference(options: Any) -> dict[str, Any]:
    names = ("max_tokens", "temperature", "top_p", "seed", "logprobs", "top_logprobs")
    return {name: getattr(options, name) for name in names}


def _parsing(options: Any) -> dict[str, Any]:
    kinds = reference.ThinkingInitialStage
    stages = (
        ("reasoning_start", kinds.ReasoningStart),
        ("reasoning_continuation", kinds.ReasoningContinuation),
        ("content_continuation", kinds.ContentContinuation),
    )
    stage = options.thinking_initial_stage
    found = next((name for name, kind in stages if kind == stage), None)
    return {
        "parse_tool_calls": options.parse_tool_calls,
        "starts_in_tool_calls": options.starts_in_tool_calls,
        "thinking_initial_stage": found,
        "stop_sequences": list(options.stop_sequences),
    }
