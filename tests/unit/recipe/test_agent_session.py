"""A session of twenty turns over Chat Completions: each prompt extends the last one and its answer.

What the model says is put together by hand, as the tokens a checkpoint of the encoding makes; it
goes out through the reader and the writer, and comes back as a client sends it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from rorqual_recipe.settings import RecipeSettings
from rorqual_recipe.tokens.segments import encode_segments

from tests.support.chat_model_dir import MODEL_ID, make_chat_model_dir
from tests.support.dsml_model_dir import TOKENS, make_dsml_model_dir

CHAT = PROTOCOLS["chat_completions"]
NUM_TURNS = 20
USAGE = TokenUsage(1, 0, 1)
HERMES = (
    "{% for tool in tools or [] %}{{ tool|tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '\n<tool_call>\n' }}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("run", "look")
]


@dataclass(frozen=True)
class Session:
    """end: the token that ends an answer. say: the parts of an answer, special tokens alone."""

    model: ServedModel
    end: str
    encoding: str

    def say(self, turn: int) -> list[str]:
        if self.encoding == "chat-template":
            return [_hermes(turn)]
        return _dsml(turn, *((" calls", " ") if self.encoding[-1] == "1" else ("tool_calls", "")))


def _hermes(turn: int) -> str:
    calls = "".join(
        f'\n<tool_call>\n{{"name": "{name}", "arguments": {{"n": {turn}.50, "s": "a\\"{turn}"}}}}'
        "\n</tool_call>"
        for name in ("run", "look")
    )
    return f"Turn {turn}: é…{calls}"


def _dsml(turn: int, block: str, gap: str) -> list[str]:
    mark = "｜DSML｜"
    call = [
        *("<", mark, f'{gap}invoke name="NAME">\n<'),
        *(mark, f'{gap}parameter name="n" string="false">{turn}.50</', mark, f"{gap}parameter>\n<"),
        *(mark, f'{gap}parameter name="s" string="true">a "q"\n<{turn}></'),
        *(mark, f"{gap}parameter>\n<"),
        *(mark, f'{gap}parameter name="big" string="false">[12345678901234567890123, 1e-07]</'),
        *(mark, f"{gap}parameter>\n</", mark, f"{gap}invoke>\n"),
    ]
    calls = [part.replace("NAME", name) for name in ("run", "look") for part in call]
    head = [f"Why turn {turn}?", "</think>", f"Turn {turn}: é…\n\n<", mark, f"{block}>\n"]
    return [*head, *calls, "</", mark, f"{block}>"]


@pytest.fixture(scope="module", params=["deepseek-v4", "deepseek-v4.1", "chat-template"])
def session(request, tmp_path_factory: pytest.TempPathFactory) -> Session:
    directory: Path = tmp_path_factory.mktemp("session")
    if request.param == "chat-template":
        make_chat_model_dir(directory, template=HERMES, max_position_embeddings=1 << 20)
        end = "<|im_end|>"
    else:
        make_dsml_model_dir(directory, encoding=request.param)
        end = TOKENS["eos"]
    return Session(load_served_model(RecipeSettings(model_dir=directory)), end, request.param)


def encode(model: ServedModel, messages: Sequence[dict[str, Any]]) -> EncodedRequest:
    body = {"model": MODEL_ID, "messages": messages, "tools": TOOLS, "max_tokens": 100}
    limits = ParseLimits(max_choices=1, has_vision=False)
    raw = json.dumps(body).encode()
    return encode_request(raw, CHAT, model, default_max_tokens=9, limits=limits)


def segments(model: ServedModel, parts: Sequence[str]) -> Iterator[Segment]:
    for part in parts:
        is_special = part in model.vocabulary.added
        yield Special(model.vocabulary.added[part], part) if is_special else part


def answer(model: ServedModel, encoded: EncodedRequest, ids: Sequence[int]) -> dict[str, Any]:
    """The assistant's message as a client gets it."""
    seed = f"r{encoded.num_prompt_tokens}"
    plan = plan_answer(encoded.parsed, encoded.rendered, is_enforced=False, call_id_seed=seed)
    reader = AnswerReader(model.vocabulary, plan)
    writer = CHAT.make_writer(AnswerFacts("r", MODEL_ID, 0, None, model.vocabulary), encoded.parsed)
    parts = [part for i in ids for part in writer.write(0, reader.feed([i]), USAGE)]
    parts += writer.write(0, reader.finish(FinishReason.STOP), USAGE)
    choice = json.loads(b"".join([*parts, *writer.finish(USAGE)]))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    return dict(choice["message"])


def test_every_prompt_extends_the_last_one_and_its_answer(session: Session) -> None:
    model = session.model
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Look into it."}]
    encoded = encode(model, messages)
    for turn in range(NUM_TURNS):
        prompt = np.frombuffer(encoded.prompt, "<i4").tolist()
        said = encode_segments(list(segments(model, session.say(turn))), model.encoder).tolist()
        message = answer(model, encoded, said)
        assert len(message["tool_calls"]) == 2
        messages.append(message)
        for call in reversed(message["tool_calls"]):
            result = {"role": "tool", "tool_call_id": call["id"], "content": f"result {turn}"}
            messages.append(result)
        encoded = encode(model, messages)
        expected = [*prompt, *said, model.vocabulary.added[session.end]]
        assert np.frombuffer(encoded.prompt, "<i4")[: len(expected)].tolist() == expected
    assert len(expected) > NUM_TURNS * 100
