"""Completions, Tokenize and Detokenize: raw prompts, their ids, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.encode import EncodedRequest, encode_request
from rorqual_recipe.model import ServedModel
from rorqual_recipe.model_files import ModelFiles
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols import DIRECT_PROTOCOLS, PROTOCOLS
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.direct import DirectServices
from rorqual_recipe.raw_text import RawText

from tests.support.chat_model_dir import MODEL_ID

COMPLETIONS = PROTOCOLS["completions"]


async def at_once(work, num_bytes: int):
    return work()


def limits_of(model: ServedModel) -> ParseLimits:
    size = len(model.vocabulary.token_bytes)
    return ParseLimits(max_choices=8, has_vision=False, vocabulary_size=size)


def encode(served: ServedModel, /, **fields: object) -> EncodedRequest:
    body = json.dumps({"model": MODEL_ID, "prompt": "Hello", **fields}).encode()
    limits = limits_of(served)
    return encode_request(body, COMPLETIONS, served, default_max_tokens=99, limits=limits)


async def ask(served: ServedModel, question: str, /, **fields: object) -> dict:
    services = DirectServices(served, limits_of(served), at_once)
    handler = DIRECT_PROTOCOLS[question]
    status, body = await handler.answer(json.dumps(fields).encode(), "", "t", services)
    assert status == 200
    return json.loads(body)


def refused(model: ServedModel, **fields: object) -> list[str]:
    with pytest.raises(RequestRefused) as caught:
        encode(model, **fields)
    return [problem.param for problem in caught.value.problems]


def ids_of(prompt: bytes) -> list[int]:
    return np.frombuffer(prompt, "<i4").tolist()


def test_a_prompt_is_continued_as_it_is(model: ServedModel) -> None:
    encoded = encode(model, prompt="Hello, world!")
    ids = ids_of(encoded.prompt)
    assert model.vocabulary.token_bytes[ids[0]].startswith(b"H")
    assert encoded.sampling.max_new_tokens == 16
    assert encode(model, prompt=ids).prompt == encoded.prompt
    assert encoded.constraint is None


def test_every_prompt_has_its_own_choices(model: ServedModel) -> None:
    encoded = encode(model, prompt=["one", [5, 6], "three"], n=2)
    assert encoded.parsed.num_choices == 6
    assert [encoded.prompt_index_of(i) for i in range(6)] == [0, 0, 1, 1, 2, 2]
    assert ids_of(encoded.prompts[1]) == [5, 6]
    assert encoded.num_prompt_tokens == sum(len(ids_of(p)) for p in encoded.prompts)


def test_a_raw_prompt_spells_special_tokens_a_message_does_not(model: ServedModel) -> None:
    special_id, spelling = next(iter(model.vocabulary.special.items()))
    ids = ids_of(encode(model, prompt=f"a{spelling.decode()}b").prompt)
    assert special_id in ids


def test_text_gets_what_the_tokenizer_puts_around_it() -> None:
    processor = {
        "type": "Sequence",
        "processors": [
            {"type": "ByteLevel"},
            {
                "type": "TemplateProcessing",
                "single": [
                    {"SpecialToken": {"id": "<s>", "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": "</s>", "type_id": 0}},
                ],
                "special_tokens": {
                    "<s>": {"id": "<s>", "ids": [1]},
                    "</s>": {"id": "</s>", "ids": [2]},
                },
            },
        ],
    }

    def files(tokenizer: dict) -> ModelFiles:
        added = [
            {"id": 1, "content": "<s>", "special": True},
            {"id": 2, "content": "</s>", "special": True},
        ]
        config = {"add_bos_token": True, "bos_token": "<s>"}
        return ModelFiles(Path(), {}, {}, config, {"added_tokens": added, **tokenizer})

    def shape(raw: RawText, **options: bool) -> list:
        segments = raw.segments("a<s>b", **options)
        return [getattr(s, "token_id", s) for s in segments]

    raw = RawText.from_model(files({"post_processor": processor}))
    assert shape(raw) == [1, "a", 1, "b", 2]
    assert shape(raw, add_special_tokens=False) == ["a", 1, "b"]
    assert shape(RawText.from_model(files({}))) == [1, "a", 1, "b"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": ["a", []]}, "prompt[1]"),
        ({"prompt": [1, True]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [[0, 10**9]]}, "prompt[0][1]"),
        ({"prompt": ["a"] * 9}, "prompt"),
        ({"prompt": ["a"] * 3, "n": 4}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 10**6}, "max_tokens"),
    ],
)
def test_a_wrong_field_is_named_by_its_exact_path(model, fields: dict, param: str) -> None:
    assert refused(model, **fields)[0] == param


def test_every_problem_is_reported_at_once(model: ServedModel) -> None:
    assert refused(model, prompt=[-1], temperature=9, echo=True) == [
        "temperature",
        "echo",
        "prompt[0]",
    ]


async def test_tokenize_and_detokenize_are_inverse(model: ServedModel) -> None:
    text = "Hello, wörld! <b>"
    found = await ask(model, "tokenize", model=MODEL_ID, prompt=text, return_token_strs=True)
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == model.max_context_tokens
    assert (await ask(model, "detokenize", tokens=found["tokens"]))["prompt"] == text


async def test_messages_are_tokenized_as_they_are_prompted(model: ServedModel) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    body = json.dumps({"model": MODEL_ID, "messages": messages}).encode()
    chat = encode_request(
        body,
        PROTOCOLS["chat_completions"],
        model,
        default_max_tokens=9,
        limits=limits_of(model),
    )
    found = await ask(model, "tokenize", messages=messages)
    assert found["tokens"] == ids_of(chat.prompt)
    assert found["token_strs"] is None


@pytest.mark.parametrize(
    ("protocol", "fields", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": 1}, "prompt"),
        ("tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("tokenize", {"messages": [{"role": "boss"}]}, "messages[0].role"),
        ("tokenize", {"prompt": "a", "return_token_strs": 1.5}, "return_token_strs"),
        ("tokenize", {"prompt": "a", "model": "nope"}, "model"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": [1, "2"]}, "tokens[1]"),
        ("detokenize", {"tokens": [10**9]}, "tokens[0]"),
    ],
)
async def test_a_wrong_question_is_named(model, protocol: str, fields: dict, param: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        await ask(model, protocol, **fields)
    assert caught.value.problems[0].param == param


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
NAMES = ["prompt", "messages", "tokens", "n", "logprobs", "stop", "logit_bias", "stream", "model"]


@given(fields=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_body_is_answered_or_refused(model: ServedModel, fields: dict) -> None:
    try:
        encode(model, **fields)
    except RequestRefused as refusal:
        assert COMPLETIONS.render_refusal(refusal.problems).http_status in (400, 404)
    for protocol in ("tokenize", "detokenize"):
        try:
            asyncio.run(ask(model, protocol, **fields))
        except RequestRefused as refusal:
            assert refusal.problems
