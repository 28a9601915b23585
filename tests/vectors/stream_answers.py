"""Our answers to the chunks of a case: streamed and whole, through reader and writers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.encode import encode_request
from rorqual_recipe.encodings.base import AnswerStage
from rorqual_recipe.model import ServedModel
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.events import FinishReason, TokenLogprob
from rorqual_recipe.output.plan import AnswerPlan, plan_answer
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import AnswerFacts, ParseLimits, TokenUsage

from tests.vectors.models import CaseModels
from tests.vectors.stream_forms import Form, Frame, form_of_body, form_of_stream, frames_of

Case = dict[str, Any]

PROTOCOL_NAMES = {"chat": "chat_completions"}
_MODEL = "DeepSeek-V4.1-Flash"
_BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "x"}]},
    "responses": {"input": "x", "store": False},
    "messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
}
_STAGES = {
    None: AnswerStage.CONTENT,
    "reasoning_start": AnswerStage.REASONING,
    "reasoning_continuation": AnswerStage.REASONING_CONTINUATION,
    "content_continuation": AnswerStage.CONTENT_CONTINUATION,
}
_LIMITS = ParseLimits(max_choices=8, has_vision=True)


class StreamAnswers:
    """Plays cases that share a tokenizer."""

    def __init__(self, tokenizer: Path) -> None:
        self._models = CaseModels(tokenizer)

    def close(self) -> None:
        """Lets go of the models."""
        self._models.close()

    def model(self, case: Case) -> ServedModel:
        """The model a case is for."""
        return self._models.get(case.get("request", {}).get("model", _MODEL), {})

    def forms(self, case: Case) -> tuple[Form, Form]:
        """(what our stream adds up to, what our body says)."""
        protocol = case["proto"]
        frames, body = self.frames(case), self.body(case)
        return form_of_stream(protocol, frames), form_of_body(protocol, body)

    def frames(self, case: Case) -> list[Frame]:
        """Events of our stream, as a client reads them."""
        return frames_of(b"".join(self._write(case, stream=True)))

    def body(self, case: Case) -> dict[str, Any]:
        """Our whole answer."""
        body: dict[str, Any] = json.loads(b"".join(self._write(case, stream=False)))
        return body

    def _write(self, case: Case, *, stream: bool) -> Iterator[bytes]:
        parsed, plan, thinks = self._plan(case, stream=stream)
        model = self.model(case)
        adapter = PROTOCOLS[PROTOCOL_NAMES.get(case["proto"], case["proto"])]
        writer = adapter.make_writer(_facts(model, thinks), replace(parsed, stream=stream))
        reader = AnswerReader(model.vocabulary, plan)
        usage = TokenUsage(*prompt_usage(case), completion_tokens=0)
        for chunk in case["chunks"]:
            events = feed(reader, chunk)
            usage = replace(
                usage,
                completion_tokens=reader.num_tokens,
                reasoning_tokens=reader.num_reasoning_tokens,
            )
            yield from writer.write(0, events, usage)
        yield from writer.write(0, reader.finish(FinishReason.STOP), usage)
        yield from writer.finish(usage)

    def _plan(self, case: Case, *, stream: bool) -> tuple[ParsedRequest, AnswerPlan, bool]:
        adapter = PROTOCOLS[PROTOCOL_NAMES.get(case["proto"], case["proto"])]
        body = {"model": _MODEL, **case.get("request", _BODIES[case["proto"]]), "stream": stream}
        if not stream:
            body.pop("stream_options", None)
        encoded = json.dumps(body).encode()
        if "request" not in case:
            parsing = case["parsing"]
            thinks = parsing.get("thinking_initial_stage") is not None
            return adapter.parse(encoded, _LIMITS), plan_of(parsing), thinks
        model = self.model(case)
        result = encode_request(encoded, adapter, model, default_max_tokens=9, limits=_LIMITS)
        plan = plan_answer(result.parsed, result.rendered, is_enforced=False, call_id_seed="x")
        return result.parsed, plan, result.rendered.thinks


def plan_of(parsing: dict[str, Any]) -> AnswerPlan:
    """Our plan for the reference's parsing options."""
    spellings = parsing.get("special_tokens", {})
    starts_in_calls = parsing.get("starts_in_tool_calls", False)
    reads_calls = parsing.get("parse_tool_calls", True) or starts_in_calls
    marks = (spellings.get("thinking_start", "<think>"), spellings.get("thinking_end", "</think>"))
    stage = None if starts_in_calls else parsing.get("thinking_initial_stage")
    return AnswerPlan(
        stage=_STAGES[stage],
        reasoning_marks=marks,
        tool_format="dsml-v4.1" if reads_calls else "none",
        dsml_mark=spellings.get("dsml", AnswerPlan().dsml_mark),
        starts_in_tool_calls=starts_in_calls,
        stops=tuple(parsing.get("stop_sequences", ())),
        json_mode=parsing.get("parse_json_output", False),
        call_id_seed="x",
    )


def feed(reader: AnswerReader, chunk: dict[str, Any]) -> list[Any]:
    """One chunk of a case."""
    if chunk["kind"] == "text":
        return reader.feed_text(chunk["text"], chunk["count"])
    if chunk["kind"] == "tokens":
        logprobs = [
            TokenLogprob(token_id, entry[0], tuple(tuple(top) for top in entry[1]))
            for token_id, entry in zip(chunk["ids"], chunk.get("logprobs", ()), strict=False)
        ]
        return reader.feed(chunk["ids"], logprobs)
    if chunk["kind"] == "finish":
        return reader.finish(FinishReason(chunk["reason"]))
    return []


def prompt_usage(case: Case) -> tuple[int, int]:
    """(prompt tokens, of them cached) as the case tells them, whenever it does."""
    for chunk in case["chunks"]:
        if chunk["kind"] == "ready" and chunk.get("usage"):
            usage = chunk["usage"]
            return usage.get("prompt_tokens", 0), usage.get("prompt_cache_hit_tokens", 0)
    return 0, 0


def _facts(model: ServedModel, thinks: bool) -> AnswerFacts:
    return AnswerFacts(
        request_id="ID",
        model=_MODEL,
        created_unix_s=0,
        system_fingerprint="fp_test",
        vocabulary=model.vocabulary,
        thinks=thinks,
        signing_key=b"k" * 32,
    )
