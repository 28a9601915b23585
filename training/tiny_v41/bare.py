"""Exercises asked of the engine alone, without services: the same prompts, grammars and pictures,
answers read as the recipe service reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rorqual_engine.batch import ImageRows
from rorqual_engine.grammar import GrammarState, load_tokenizer_info
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.vision import VisionTower
from rorqual_engine.runner import BareEngine, GenerationParams
from rorqual_grammar.compiler import compile_constraint
from rorqual_grammar.compiler import load_tokenizer_info as load_grammar_info
from rorqual_grammar.constraint import Constraint, ConstraintKind
from rorqual_recipe.encode import EncodedRequest, encode_request
from rorqual_recipe.model import load_served_model
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.events import (
    AnswerEvent,
    ContentDelta,
    FinishReason,
    ToolArgumentsDelta,
    ToolCallBegan,
)
from rorqual_recipe.output.plan import plan_answer
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.chat.adapter import ChatCompletions
from rorqual_recipe.settings import RecipeSettings

from training.tiny_v41.tasks.exercise import Exercise, Json
from training.tiny_v41.tasks.shapes import paint

MAX_NEW_TOKENS = 400
_LIMITS = ParseLimits(max_choices=1, has_vision=True)


class BareAnswers:
    """One model, loaded once."""

    def __init__(self, model_dir: Path, *, num_pages: int = 1024) -> None:
        settings = RecipeSettings(model_dir=model_dir, fast_tokenizer=False, prompt_encoding="auto")
        self._served = load_served_model(settings)
        self._fields = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
        model = load_model(model_dir)
        self._engine = BareEngine(model, num_pages=num_pages)
        self._tower = VisionTower.load(model_dir, self._fields, torch.device("cpu"), torch.bfloat16)
        self._grammar_info = load_grammar_info(model_dir)
        stops = sorted(model.eos_token_ids)
        self._info = load_tokenizer_info(model_dir, model.vocab_size, stops)

    def ask(self, exercises: Sequence[Exercise]) -> list[Json]:
        """The assistant's messages, as Chat Completions has them."""
        encoded = [self._encoded(found) for found in exercises]
        shown = [self._tower.encode([paint(p) for p in found.pictures]) for found in exercises]
        prompts = [self._prompt(e, rows) for e, rows in zip(encoded, shown, strict=True)]
        outputs = self._engine.generate(
            prompts,
            GenerationParams(max_new_tokens=MAX_NEW_TOKENS),
            [self._grammar(e) for e in encoded],
            [self._images(p, rows) for p, rows in zip(prompts, shown, strict=True)],
        )
        return [self._message(e, ids) for e, ids in zip(encoded, outputs, strict=True)]

    def _encoded(self, found: Exercise) -> EncodedRequest:
        body = {**found.body(self._served.model_id), "temperature": 0}
        return encode_request(
            json.dumps(body).encode(), ChatCompletions(), self._served,
            default_max_tokens=MAX_NEW_TOKENS, limits=_LIMITS,
        )  # fmt: skip

    def _prompt(self, encoded: EncodedRequest, shown: Sequence[torch.Tensor]) -> list[int]:
        """Every image's one token as many times as it has rows."""
        lengths = iter(len(rows) for rows in shown)
        ids: list[int] = []
        for token in np.frombuffer(encoded.prompt, np.dtype("<i4")).tolist():
            is_image = shown and token == self._fields["image_token_id"]
            ids += [token] * (next(lengths) if is_image else 1)
        return ids

    def _images(self, prompt: Sequence[int], shown: Sequence[torch.Tensor]) -> ImageRows | None:
        if not shown:
            return None
        rows = np.flatnonzero(np.array(prompt) == self._fields["image_token_id"])
        return ImageRows(rows, torch.cat(list(shown)))

    def _grammar(self, encoded: EncodedRequest) -> GrammarState | None:
        wanted = encoded.constraint
        if wanted is None:
            return None
        constraint = Constraint(ConstraintKind(wanted.kind), wanted.source, wanted.param)
        compiled = compile_constraint(constraint, self._grammar_info)
        return GrammarState.from_serialized(compiled, self._info)

    def _message(self, encoded: EncodedRequest, ids: Sequence[int]) -> Json:
        plan = plan_answer(
            encoded.parsed,
            encoded.rendered,
            is_enforced=encoded.constraint is not None,
            call_id_seed="bare",
        )
        reader = AnswerReader(self._served.vocabulary, plan)
        is_whole = bool(ids) and ids[-1] == self._fields["eos_token_id"]
        events = reader.feed(ids[:-1] if is_whole else ids)
        events += reader.finish(FinishReason.STOP if is_whole else FinishReason.LENGTH)
        return message_of(events)


def message_of(events: Sequence[AnswerEvent]) -> Json:
    """Content and tool calls of an answer."""
    content, calls = "", list[dict[str, Any]]()
    for event in events:
        match event:
            case ContentDelta():
                content += event.text
            case ToolCallBegan():
                calls.append({"name": event.name, "arguments": ""})
            case ToolArgumentsDelta():
                calls[-1]["arguments"] += event.text
    return {"content": content, "tool_calls": [{"function": call} for call in calls]}
