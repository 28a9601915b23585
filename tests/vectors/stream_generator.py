"""Streams made up from a seed, with the reference's own answers: cases in the format of the files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import deepseek_recipe as reference

Case = dict[str, Any]

_M = "｜DSML｜"
_STAGES = (None, None, "reasoning_start", "reasoning_start", "reasoning_continuation")
_WORDS = ("Hello", " wörld", " 你好", "\n", "\n\n", " a<b", "</b>", " 😀", "<", "\n<", "</", "STOP")
_VALUES = ("x", "", 'line\n"q" \\ 文', "a<b", "3", "<b>&</b>", " padded ", "\n")
_JSON = ("1", "1.50", "-2e3", "true", "null", '{"a": [1, {"b": "</x>"}]}', "[]", '"s"', " 7\n")
_NO_JSON = ("True", "", "{'a': 1}", "x y", '{"a":')
_FINISHES = ("stop", "stop", "stop", "length", "content_filter")
_SETTINGS = {"chat": "Chat", "responses": "Responses", "messages": "Messages"}


class StreamGenerator:
    """Makes cases of one protocol; the same seed makes the same ones."""

    def __init__(self, protocol: str, seed: int, tokenizer: Path) -> None:
        self._protocol = protocol
        self._random = random.Random(f"{protocol}/{seed}")
        self._tokenizer = reference.Tokenizer.from_file(str(tokenizer))

    def case(self, number: int) -> Case:
        """The next case."""
        parsing = self._parsing()
        text = self._text(parsing)
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

    def _parsing(self) -> dict[str, Any]:
        pick = self._random
        parsing: dict[str, Any] = {}
        stage = pick.choice(_STAGES)
        if stage:
            parsing["thinking_initial_stage"] = stage
        if pick.random() < 0.2:
            parsing["stop_sequences"] = pick.choice((["STOP"], ["STOP", "\n\n"], ["世", "好"]))
        elif pick.random() < 0.15:
            parsing["parse_json_output"] = True
        if pick.random() < 0.1:
            parsing["parse_tool_calls"] = False
        return parsing

    def _text(self, parsing: dict[str, Any]) -> str:
        pick = self._random
        text = ""
        if "thinking_initial_stage" in parsing:
            text = self._words() + pick.choice(("</think>", "</think>\n\n", "\n</think>", ""))
        if parsing.get("parse_json_output"):
            text += self._json_answer()
        else:
            text += self._words()
        if pick.random() < 0.7:
            text += pick.choice(("\n\n", "", "\n")) + self._block()
        if pick.random() < 0.15:
            text += pick.choice(("\n\nbehind", "\n", " x", "</think>")) + self._words()
        return text[: pick.randrange(len(text) + 1)] if text and pick.random() < 0.2 else text

    def _words(self) -> str:
        return "".join(self._random.choices(_WORDS, k=self._random.randrange(6)))

    def _json_answer(self) -> str:
        value = self._random.choice(('{"a": 1}', "[1, 2]", '{"k": ["}", "\\""]}', "none", "[x]"))
        before, after = self._random.choice((("", ""), ("```json\n", "\n```"), ("Here: ", " ok")))
        return before + value + after

    def _block(self) -> str:
        pick = self._random
        space, word = pick.choice(((" ", "calls"), ("", "tool_calls")))
        calls = "".join(self._call(space) for _ in range(pick.choice((1, 1, 1, 2, 0))))
        head, tail = f"<{_M}{space}{word}>\n", f"</{_M}{space}{word}>"
        odd = pick.random()
        if odd < 0.08:
            head = ""
        elif odd < 0.16:
            tail = ""
        elif odd < 0.2:
            head += "junk\n"
        elif odd < 0.24:
            return f"<{_M}zzz> and more"
        return head + calls + tail

    def _call(self, space: str) -> str:
        pick = self._random
        name = pick.choice(("f", "get_weather", "a.b", "naïve"))
        parameters = "\n".join(self._parameter(space) for _ in range(pick.randrange(4)))
        opening = pick.choices(
            (f'name="{name}"', f"name='{name}'", f'name = "{name}"', "nam"), (20, 1, 1, 1)
        )[0]
        ending = "" if pick.random() < 0.06 else f"\n</{_M}{space}invoke>\n"
        return f"<{_M}{space}invoke {opening}>\n{parameters}{ending}"

    def _parameter(self, space: str) -> str:
        pick = self._random
        key = pick.choice(("a", "b", "c", "文", "k d", 'q"r'))
        is_text = pick.random() < 0.6
        value = pick.choice(_VALUES if is_text else _JSON * 3 + _NO_JSON)
        if pick.random() < 0.05:
            value += f"</{_M} y"
        kind = f'string="{"true" if is_text else "false"}"'
        attributes = pick.choices(
            (f'name="{key}" {kind}', f'{kind} name="{key}"', f'name="{key}"'), (20, 1, 1)
        )[0]
        return f"<{_M}{space}parameter {attributes}>{value}</{_M}{space}parameter>"

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
