"""An agent's session over Messages: every prompt begins with the last prompt and its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rorqual_recipe.encode import EncodedRequest, encode_request
from rorqual_recipe.encodings.base import Segment, Special
from rorqual_recipe.model import ServedModel, load_served_model
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.events import FinishReason
from rorqual_recipe.output.plan import plan_answer
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import AnswerFacts, ParseLimits, TokenUsage
from rorqual_recipe.protocols.json_spelling import SpelledValues
from rorqual_recipe.settings import RecipeSettings
from rorqual_recipe.tokens.segments import encode_segments

from tests.support.chat_model_dir import MODEL_ID
from tests.support.dsml_model_dir import TOKENS, make_dsml_model_dir

MESSAGES = PROTOCOLS["messages"]
NUM_TURNS = 20
USAGE = TokenUsage(1, 0, 1)
TOOL = {"name": "run", "input_schema": {"type": "object", "properties": {"cmd": {}, "n": {}}}}


@pytest.fixture(scope="module", params=["deepseek-v4", "deepseek-v4.1"])
def dsml_model(request, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    directory: Path = tmp_path_factory.mktemp("dsml")
    make_dsml_model_dir(directory, encoding=request.param)
    return load_served_model(RecipeSettings(model_dir=directory))


def encode(model: ServedModel, messages: Sequence[str], *, stream: bool) -> EncodedRequest:
    """messages: JSON texts, so that nothing in them is written anew."""
    fields = {
        "model": MODEL_ID,
        "max_tokens": 100,
        "stream": stream,
        "tools": [TOOL],
        "thinking": {"type": "enabled", "budget_tokens": 2000},
    }
    body = json.dumps(fields)[:-1] + f', "messages": [{", ".join(messages)}]}}'
    limits = ParseLimits(max_choices=1, has_vision=False)
    return encode_request(body.encode(), MESSAGES, model, default_max_tokens=9, limits=limits)


def output_of(model: ServedModel, turn: int, version: str) -> np.ndarray:
    """Ids of what the model says: thinking, a text, a call; without the end token."""
    calls, gap = ("calls", " ") if version == "deepseek-v4.1" else ("tool_calls", "")
    parts = [
        f"I need file {turn}.",
        "</think>",
        f"Reading {turn}… \n\n<",
        *("｜DSML｜", f"{gap}{calls}>\n<", "｜DSML｜", f'{gap}invoke name="run">\n<'),
        *("｜DSML｜", f'{gap}parameter name="cmd" string="true">cat "é{turn}"\n\\x</'),
        *("｜DSML｜", f"{gap}parameter>\n<"),
        *("｜DSML｜", f'{gap}parameter name="n" string="false">{turn}.50</'),
        *("｜DSML｜", f"{gap}parameter>\n<"),
        *("｜DSML｜", f'{gap}parameter name="more" string="false">'),
        *('{"big": 12345678901234567890123, "list": [1, 2]}</', "｜DSML｜"),
        *(f"{gap}parameter>\n</", "｜DSML｜", f"{gap}invoke>\n</", "｜DSML｜", f"{gap}{calls}>"),
    ]
    return encode_segments(list(_segments(model, parts)), model.encoder)


def _segments(model: ServedModel, parts: Sequence[str]) -> Iterator[Segment]:
    for part in parts:
        if part in TOKENS.values():
            yield Special(model.vocabulary.added[part], part)
        else:
            yield part


def answer_text(model: ServedModel, encoded: EncodedRequest, ids: Sequence[int]) -> str:
    """The content of the answer as it left us, as JSON text."""
    seed = {"is_enforced": False, "call_id_seed": f"r{encoded.num_prompt_tokens}"}
    reader = AnswerReader(model.vocabulary, plan_answer(encoded.parsed, encoded.rendered, **seed))
    facts = AnswerFacts("r", MODEL_ID, 0, None, model.vocabulary)
    writer = MESSAGES.make_writer(facts, encoded.parsed)
    parts: list[bytes] = []
    for token_id in ids:
        parts += writer.write(0, reader.feed([token_id]), USAGE)
    parts += writer.write(0, reader.finish(FinishReason.STOP), USAGE)
    parts += writer.finish(USAGE)
    if encoded.parsed.stream:
        return _content_of_stream(parts)
    return SpelledValues(b"".join(parts).decode()).find("content")["content"]


def _content_of_stream(frames: Sequence[bytes]) -> str:
    """What a client that keeps the text of inputs makes of a stream."""
    blocks: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    for frame in frames:
        event = json.loads(frame.decode().split("data: ", 1)[1])
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            at, delta = event["index"], event["delta"]
            (name,) = delta.keys() - {"type"}
            if name == "partial_json":
                inputs[at] = inputs.get(at, "") + delta[name]
            else:
                blocks[at][name] += delta[name]
    texts = [json.dumps(block, ensure_ascii=False) for block in blocks]
    for at, spelled in inputs.items():
        texts[at] = texts[at].replace('"input": {}', f'"input": {spelled}')
    return f"[{', '.join(texts)}]"


@pytest.mark.parametrize("stream", [False, True])
def test_every_prompt_begins_with_the_last_one_and_its_answer(
    dsml_model: ServedModel, request, stream: bool
) -> None:
    version = request.node.callspec.params["dsml_model"]
    end = dsml_model.vocabulary.added[TOKENS["eos"]]
    messages = ['{"role": "user", "content": "Look into the files."}']
    for turn in range(NUM_TURNS):
        encoded = encode(dsml_model, messages, stream=stream)
        ids = np.frombuffer(encoded.prompt, "<i4")
        said = output_of(dsml_model, turn, version)
        content = answer_text(dsml_model, encoded, said.tolist())
        (call_id,) = [b["id"] for b in json.loads(content) if b["type"] == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call_id, "content": f"file {turn}"}
        messages += [
            f'{{"role": "assistant", "content": {content}}}',
            json.dumps({"role": "user", "content": [result]}),
        ]
        following = encode(dsml_model, messages, stream=stream)
        assert following.parsed.warnings == []
        expected = [*ids.tolist(), *said.tolist(), end]
        assert np.frombuffer(following.prompt, "<i4")[: len(expected)].tolist() == expected


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_tools_that_may_not_be_called_are_not_declared_later(dsml_model, choice: str) -> None:
    late = {**TOOL, "name": "late", "defer_loading": True}
    added = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "late"}}
    body = {
        "model": MODEL_ID,
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "system", "content": [{"type": "text", "text": "note"}, added]},
        ],
        "tools": [TOOL, late],
        "tool_choice": {"type": choice},
    }
    limits = ParseLimits(max_choices=1, has_vision=False)
    raw = json.dumps(body).encode()
    encoded = encode_request(raw, MESSAGES, dsml_model, default_max_tokens=9, limits=limits)
    prompt = "".join(p for p in encoded.rendered.segments if isinstance(p, str))
    assert "note" in prompt
    assert ('"late"' in prompt) == (choice == "auto")


def test_deferred_tools_stand_where_the_version_has_them(dsml_model, request) -> None:
    version = request.node.callspec.params["dsml_model"]
    late = {**TOOL, "name": "late", "defer_loading": True}
    added = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "late"}}
    system = {"role": "system", "content": [{"type": "text", "text": "note"}, added]}
    body = {
        "model": MODEL_ID,
        "messages": [system, {"role": "user", "content": "q"}],
        "tools": [TOOL, late],
    }

    def prompt_of(**fields: Any) -> str:
        raw = json.dumps({**body, **fields}).encode()
        limits = ParseLimits(max_choices=1, has_vision=False)
        encoded = encode_request(raw, MESSAGES, dsml_model, default_max_tokens=9, limits=limits)
        return "".join(p for p in encoded.rendered.segments if isinstance(p, str))

    prompt = prompt_of()
    if version == "deepseek-v4":
        assert prompt.index('"run"') < prompt.index('"late"') < prompt.index("note")
        assert '"late"' not in prompt_of(tool_choice={"type": "tool", "name": "run"})
    else:
        places = [prompt.index(text) for text in ("note", '"run"', "More tools", '"late"', "q")]
        assert places[:4] == sorted(places[:4])
