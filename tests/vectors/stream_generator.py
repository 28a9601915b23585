"""Streams made up from a seed, with the reference's own answers: cases as in the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deepseek_recipe as reference

from tests.vectors.stream_texts import StreamTexts

Case = dict[str, Any]

_FINISHES = ("stop", "stop", "stop", "length", "content_filter")
_SETTINGS = {"chat": "Chat", "responses": "Responses", "messages": "Messages"}


class StreamGenerator:
    """Makes cases of one protocol; the same seed makes the same ones."""

    def __init__(self, protocol: str, seed: int, tokenizer: Path) -> None:
        self._protocol = protocol
        self._texts = StreamTexts(f"{protocol}/{seed}")
        self._random = self._texts.random
        self._tokenizer = reference.Tokenizer.from_file(str(tokenizer))

    def case(self, number: int) -> Case:
        """The next case."""
        parsing = self._texts.parsing()
        text = self._texts.text(parsing)
        chunks, chunking = self._chunks(text)
        usage = {"prompt_tokens": 21, "prompt_cache_hit_tokens": 8}
        ready = {"kind": "ready", "usage": usage, "fingerprint": "fp_test"}
        finish = {"kind": "finish", "reason": self._random.choice(_FINISHES)}
        case = {
            "id": f"gen-{self._protocol}-{number:04d}",
            "proto": self._protocol,
            "group": "generated",
            "chunking": chunking,
            "parsing": parsing,
            "chunks": [ready, *chunks, finish],
        }
        return {**case, "expect": answer(case, self._tokenizer)}

    def _chunks(self, text: str) -> tuple[list[dict[str, Any]], str]:
        pick = self._random
        mode = pick.choice(("text/whole", "text/chars", "text/random", "ids/tokens", "ids/groups"))
        if mode.startswith("ids"):
            ids = self._tokenizer.encode(text)
            size = 1 if mode == "ids/tokens" else 5
            return [{"kind": "tokens", "ids": part} for part in self._cut(ids, size)], mode
        size = {"text/whole": len(text) + 1, "text/chars": 1, "text/random": 9}[mode]
        parts = self._cut(text, size) if mode != "text/whole" else [text]
        return [{"kind": "text", "text": part, "count": 1} for part in parts if part], mode

    def _cut(self, items: Any, size: int) -> list[Any]:
        parts, at = [], 0
        while at < len(items):
            step = self._random.randint(1, size)
            parts.append(items[at : at + step])
            at += step
        return parts


def answer(case: Case, tokenizer: Any) -> dict[str, Any]:
    """What the reference makes of a case, as the files tell it."""
    generator, response = _protocol_objects(case)
    processor = reference.StreamProcessor(generator, _options(case["parsing"]), tokenizer)
    pushes: list[list[dict[str, Any]]] = []
    for chunk in case["chunks"]:
        if processor.finished:
            break
        events = processor.push(_chunk(chunk))
        shown = []
        for event in events:
            name = type(response).sse_event_name(event)
            shown.append({"event": name, "data": json.loads(event.to_json())})
            response.accumulate(event)
        pushes.append(shown)
    return {"pushes": pushes, "error": None, "response": json.loads(response.to_json())}


def _protocol_objects(case: Case) -> tuple[Any, Any]:
    thinks = case["parsing"].get("thinking_initial_stage") is not None
    kind = _SETTINGS[case["proto"]]
    response_type = {"chat": "ChatCompletionResponse"}.get(case["proto"], f"{kind}Response")
    response = getattr(reference, response_type)("ID", "MODEL", 0, 21, 8)
    if case["proto"] == "messages":
        return reference.MessagesChunkGenerator("ID", "MODEL", thinks), response
    body: dict[str, Any] = {"model": "DeepSeek-V4.1-Flash"}
    if case["proto"] == "chat":
        body |= {"messages": [{"role": "user", "content": "x"}], "stream": True}
        body["thinking"] = {"type": "enabled" if thinks else "disabled"}
        request = reference.ChatCompletionRequest(body)
    else:
        body |= {"input": "x", "reasoning": {"effort": "high" if thinks else "none"}}
        request = reference.ResponsesRequest(body)
    converted = request.convert(reference.ConversionOptions())
    return type(request).chunk_generator(converted, "ID", "MODEL"), response


def _options(parsing: dict[str, Any]) -> Any:
    stages = {
        "reasoning_start": reference.ThinkingInitialStage.ReasoningStart,
        "reasoning_continuation": reference.ThinkingInitialStage.ReasoningContinuation,
        "content_continuation": reference.ThinkingInitialStage.ContentContinuation,
    }
    return reference.ParsingOptions(
        parse_tool_calls=parsing.get("parse_tool_calls", True),
        parse_json_output=parsing.get("parse_json_output", False),
        thinking_initial_stage=stages.get(parsing.get("thinking_initial_stage")),
        stop_sequences=parsing.get("stop_sequences"),
    )


def _chunk(chunk: dict[str, Any]) -> Any:
    make = reference.InferenceChunk
    if chunk["kind"] == "ready":
        usage = reference.PromptUsage(**chunk["usage"])
        return make.ready(prompt_usage=usage, system_fingerprint=chunk["fingerprint"])
    if chunk["kind"] == "text":
        return make.text(chunk["text"], chunk["count"])
    if chunk["kind"] == "tokens":
        return make.tokens(chunk["ids"])
    reasons = reference.InferenceFinishReason
    return make.finish(
        {
            "stop": reasons.Stop,
            "length": reasons.Length,
            "content_filter": reasons.ContentFilter,
        }[chunk["reason"]]
    )
