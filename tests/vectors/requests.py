"""Request cases: body in, prompt, ids and options out, compared with the reference's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rorqual_recipe.conversation import ConstraintKind, ParsedRequest
from rorqual_recipe.encode import EncodedRequest, encode_request
from rorqual_recipe.encodings.base import NO_TOOL_FORMAT, AnswerStage, Image, Segment, Special
from rorqual_recipe.model import ServedModel
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import ParseLimits

from tests.vectors.models import CaseModels
from tests.vectors.outcome import Difference, Outcome, first_difference
from tests.vectors.request_rules import explain_accepted, explain_field, explain_refused
from tests.vectors.undo import NOTHING, UNDOS, Undo

Case = dict[str, Any]
Differences = dict[str, tuple[Any, Any]]
_PROTOCOL_NAMES = {"chat": "chat_completions"}
_FLOAT32 = 1e-6


@dataclass(frozen=True, slots=True)
class _Understood:
    """A protocol that has read its body already."""

    parsed: ParsedRequest

    def parse(self, _body: bytes, _limits: ParseLimits) -> ParsedRequest:
        return self.parsed


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
        body, options = body_of(case), case.get("options", {})
        model = self._models.get(_model_name(body), options)
        try:
            parsed = parse(case["proto"], body, options)
            encoded = encode(parsed, model)
        except RequestRefused as refusal:
            if expect["ok"]:
                texts = [problem.text() for problem in refusal.problems]
                entry = explain_refused(case, texts)
                yield Difference("refused", str(refusal), "accepted", entry)
            return
        if not expect["ok"]:
            yield Difference("accepted", "accepted", expect["message"], explain_accepted(case))
            return
        found = compare(case, encoded)
        if found:
            yield from _Explanation(case, parsed, model).differences(found)


def parse(proto: str, body: bytes, options: Case) -> ParsedRequest:
    """The request, understood. Raises: RequestRefused."""
    limits = ParseLimits(
        max_choices=8,
        has_vision=True,
        drop_server_tools=options.get("messages_web_search") == "Drop",
    )
    return PROTOCOLS[_PROTOCOL_NAMES.get(proto, proto)].parse(body, limits)


def encode(parsed: ParsedRequest, model: ServedModel) -> EncodedRequest:
    """The request, ready to be generated. Raises: RequestRefused."""
    adapter: Any = _Understood(parsed)
    limits = ParseLimits(max_choices=8, has_vision=True)
    return encode_request(b"", adapter, model, default_max_tokens=1, limits=limits)


class _Explanation:
    """Looks for the entries that explain what differs in one case."""

    def __init__(self, case: Case, parsed: ParsedRequest, model: ServedModel) -> None:
        self._case = case
        self._parsed = parsed
        self._model = model

    def differences(self, found: Differences) -> Iterator[Difference]:
        """One Difference each, with its entries joined by `+`."""
        undos = self._needed([undo for undo in UNDOS if self._with([undo]) != found])
        left = self._with(undos)
        for field, (ours, theirs) in found.items():
            entries = self._entries(field, undos) if left.get(field) != (ours, theirs) else []
            if field in left:
                entries.append(explain_field(self._case, field, *left[field]))
            shown = first_difference(ours, theirs) if isinstance(ours, str) else (ours, theirs)
            is_known = bool(entries) and None not in entries
            entry = "+".join(filter(None, entries)) if is_known else None
            yield Difference(field, *shown, entry)

    def _with(self, undos: list[Undo]) -> Differences:
        parsed = self._parsed
        for undo in undos:
            parsed = undo.apply(parsed, self._case)
        try:
            return compare(self._case, encode(parsed, self._model))
        except RequestRefused as refusal:
            return {"refused": (str(refusal), "accepted")}

    def _needed(self, undos: list[Undo]) -> list[Undo]:
        """Those without which more differs."""
        fewest = self._with(undos)
        for undo in list(undos):
            rest = [other for other in undos if other is not undo]
            if self._with(rest) == fewest:
                undos = rest
        return undos

    def _entries(self, field: str, undos: list[Undo]) -> list[str | None]:
        """Entries that a field's difference goes away with."""
        full = self._with(undos).get(field)
        needed = [
            undo.entry
            for undo in undos
            if self._with([other for other in undos if other is not undo]).get(field) != full
        ]
        return list(needed or [undo.entry for undo in undos])


def compare(case: Case, encoded: EncodedRequest) -> Differences:
    """What is not as the reference has it: field -> (ours, theirs)."""
    found: Differences = {}
    expect, segments = case["expect"], encoded.rendered.segments
    prompt = prompt_text(segments).replace(NOTHING, "")
    if _sha256(prompt.encode()) != expect["prompt_sha256"]:
        found["prompt"] = (prompt, expect.get("prompt", ""))
    elif not any(isinstance(s, str) and NOTHING in s for s in segments):
        ranges = special_ranges(segments)
        if ranges != expect["special_ranges"]:
            found["special_ranges"] = (ranges, expect["special_ranges"])
        ids = np.frombuffer(encoded.prompt, "<i4").tolist()
        theirs = expect.get("token_ids_sha256")
        if theirs is not None and _sha256(json.dumps(ids).encode()) != theirs:
            found["token_ids"] = (ids, expect.get("token_ids"))
    pairs = _field_pairs(case, encoded)
    return found | {f: (ours, theirs) for f, ours, theirs in pairs if not _is_same(ours, theirs)}


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
    return segment if isinstance(segment, str) else segment.content


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
    yield "images", len(rendered.images), len(expect["image_sources"])
    if expect["conversation"] is not None:
        yield "format", _format(encoded), _format_of(expect["conversation"])


def _stage(rendered: Any) -> str | None:
    if not rendered.thinks:
        return None
    return {AnswerStage.REASONING: "reasoning_start"}.get(rendered.stage, rendered.stage.value)


def _format(encoded: EncodedRequest) -> tuple[str, Any]:
    constraint = encoded.parsed.conversation.response_format
    if constraint is None:
        return "text", None
    is_schema = constraint.kind is ConstraintKind.JSON_SCHEMA
    is_word = constraint.kind is ConstraintKind.JSON_OBJECT
    source = json.loads(constraint.source) if is_schema else constraint.source
    source = None if is_word else source
    return constraint.kind.value, source


def _format_of(conversation: dict[str, Any]) -> tuple[str, Any]:
    kind, schema = conversation["response_format"], conversation["response_schema"]
    return kind, schema if kind == "json_schema" else conversation["response_regex"]


def _is_same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, float) and isinstance(ours, int | float):
        return abs(ours - theirs) < _FLOAT32
    return bool(ours == theirs)
