"""Request cases: body in, prompt, ids and options out, compared with the reference's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rorqual_recipe.conversation import ConstraintKind
from rorqual_recipe.encode import EncodedRequest, encode_request
from rorqual_recipe.encodings.base import NO_TOOL_FORMAT, AnswerStage, Image, Segment, Special
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import ParseLimits

from tests.vectors.models import CaseModels
from tests.vectors.outcome import Difference, Outcome, first_difference
from tests.vectors.request_rules import explain_accepted, explain_field, explain_refused
from tests.vectors.undo import explain_prompt

Case = dict[str, Any]
_PROTOCOL_NAMES = {"chat": "chat_completions"}
_FLOAT32 = 1e-6


class RequestChecks:
    """Compares request cases that share a tokenizer."""

    def __init__(self, tokenizer: Path) -> None:
        self._models = CaseModels(tokenizer)

    def close(self) -> None:
        """Lets go of the models."""
        self._models.close()

    def check(self, case: Case) -> Outcome:
        """One case."""
        group = f"{case['proto']}/{case['group']}"
        return Outcome(case["id"], group, tuple(self._differences(case)))

    def _differences(self, case: Case) -> Iterator[Difference]:
        expect = case["expect"]
        try:
            encoded = self.encode(case)
        except RequestRefused as refusal:
            if expect["ok"]:
                text = str(refusal)
                yield Difference("refused", text, "accepted", explain_refused(case, text))
            return
        if not expect["ok"]:
            yield Difference("accepted", "accepted", expect["message"], explain_accepted(case))
            return
        yield from self._prompt_differences(case, encoded)
        for field, ours, theirs in _field_pairs(case, encoded):
            if not _is_same(ours, theirs):
                yield Difference(field, ours, theirs, explain_field(case, field, ours, theirs))

    def encode(self, case: Case) -> EncodedRequest:
        """Our answer. Raises: RequestRefused."""
        body, options = body_of(case), case.get("options", {})
        model = self._models.get(_model_name(body), options)
        protocol = _PROTOCOL_NAMES.get(case["proto"], case["proto"])
        limits = ParseLimits(
            max_choices=8,
            has_vision=True,
            drop_server_tools=options.get("messages_web_search") == "Drop",
        )
        return encode_request(body, PROTOCOLS[protocol], model, default_max_tokens=1, limits=limits)

    def _prompt_differences(self, case: Case, encoded: EncodedRequest) -> Iterator[Difference]:
        expect = case["expect"]
        prompt = prompt_text(encoded.rendered.segments)
        if _sha256(prompt.encode()) != expect["prompt_sha256"]:
            model = self._models.get(encoded.parsed.model, case.get("options", {}))
            theirs = expect.get("prompt", "")
            for entry in explain_prompt(case, encoded.parsed, model.encoding) or [None]:
                yield Difference("prompt", *first_difference(prompt, theirs), entry)
            return
        ranges = special_ranges(encoded.rendered.segments)
        if ranges != expect["special_ranges"]:
            yield Difference("special_ranges", ranges, expect["special_ranges"])
        ids = np.frombuffer(encoded.prompt, "<i4").tolist()
        theirs = expect.get("token_ids_sha256")
        if theirs is not None and _sha256(json.dumps(ids).encode()) != theirs:
            yield Difference("token_ids", ids, expect.get("token_ids"))


def body_of(case: Case) -> bytes:
    """The body as it was sent."""
    if "body_raw" in case:
        return str(case["body_raw"]).encode()
    return json.dumps(case["body"], ensure_ascii=False).encode()


def _model_name(body: bytes) -> str:
    try:
        return str(json.loads(body)["model"])
    except (ValueError, KeyError, TypeError):
        return ""


def prompt_text(segments: Any) -> str:
    """The prompt as one text, special tokens spelled out."""
    return "".join(_spelling(segment) for segment in segments)


def _spelling(segment: Segment) -> str:
    return segment.content if isinstance(segment, Special | Image) else segment.text


def special_ranges(segments: Any) -> list[list[int]]:
    """Where the special tokens stand in prompt_text."""
    ranges, at = [], 0
    for segment in segments:
        end = at + len(_spelling(segment))
        if isinstance(segment, Special | Image):
            ranges.append([at, end])
        at = end
    return ranges


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _field_pairs(case: Case, encoded: EncodedRequest) -> Iterator[tuple[str, Any, Any]]:
    expect = case["expect"]
    parsed, rendered, sampling = encoded.parsed, encoded.rendered, encoded.sampling
    inference, parsing = expect["inference"], expect["parsing"]
    yield "stream", parsed.stream, expect["stream"]
    yield "max_tokens", parsed.sampling.max_tokens, inference["max_tokens"]
    yield "default_max_tokens", sampling.max_new_tokens, expect["default_max_tokens"]
    yield "temperature", sampling.temperature, inference["temperature"]
    yield "top_p", sampling.top_p, inference["top_p"]
    yield "seed", parsed.sampling.seed, inference["seed"]
    yield "logprobs", sampling.logprobs, inference["logprobs"]
    yield "top_logprobs", sampling.top_logprobs, inference["top_logprobs"] or 0
    yield "stop", list(parsed.stop), parsing["stop_sequences"]
    yield "calls", rendered.tool_format != NO_TOOL_FORMAT, parsing["parse_tool_calls"]
    yield "in_calls", rendered.starts_in_tool_calls, parsing["starts_in_tool_calls"]
    yield "stage", _stage(rendered), parsing["thinking_initial_stage"]
    if expect["conversation"] is not None:
        yield "format", _format(encoded), _format_of(expect["conversation"])
    yield "images", len(rendered.images), len(expect["image_sources"])


def _stage(rendered: Any) -> str | None:
    if not rendered.thinks:
        return None
    return {AnswerStage.REASONING: "reasoning_start"}.get(rendered.stage, rendered.stage.value)


def _format(encoded: EncodedRequest) -> tuple[str, Any]:
    constraint = encoded.parsed.conversation.response_format
    if constraint is None:
        return "text", None
    is_schema = constraint.kind is ConstraintKind.JSON_SCHEMA
    source = json.loads(constraint.source) if is_schema else constraint.source or None
    return constraint.kind.value, source


def _format_of(conversation: dict[str, Any]) -> tuple[str, Any]:
    kind = conversation["response_format"]
    return kind, conversation["response_schema"] or conversation["response_regex"]


def _is_same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, float) and isinstance(ours, int | float):
        return abs(ours - theirs) < _FLOAT32
    return bool(ours == theirs)
