"""How answers end, and what comes with their tokens."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xgrammar
from rorqual_engine.grammar import load_tokenizer_info
from rorqual_proto.v1 import decode_pb2

from tests.integration.prefill_decode.conftest import prompt
from tests.integration.prefill_decode.fleet import SlowModel, running_fleet
from tests.support.tiny_model_dir import EOS_TOKEN_ID, make_tokenizer


async def test_a_stop_token_ends_the_answer_and_is_its_last_token(
    runtime_settings, tiny_model, tiny_dir, bare
):
    expected = bare(prompt(60), 30)
    stop = expected[9]
    num_tokens = expected.index(stop) + 1
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        output = await fleet.around.complete(
            "r", prompt(60), max_new_tokens=30, ignore_eos=True, stop_token_ids=[stop]
        )
        assert output.token_ids == expected[:num_tokens]
        assert output.finish_reason == decode_pb2.FINISH_REASON_STOP
        await fleet.nothing_held()


async def test_the_end_token_ends_the_answer_unless_it_is_ignored(
    runtime_settings, tiny_model, tiny_dir, bare
):
    expected = bare(prompt(60), 30)
    model = SlowModel(tiny_model, 0.0)
    model.eos_token_ids = (expected[9],)
    num_tokens = expected.index(expected[9]) + 1
    async with running_fleet(runtime_settings, model, tiny_dir) as fleet:
        stopped = await fleet.around.complete("a", prompt(60), max_new_tokens=30)
        ignored = await fleet.around.complete("b", prompt(60), max_new_tokens=30, ignore_eos=True)
    assert stopped.token_ids == expected[:num_tokens]
    assert stopped.finish_reason == decode_pb2.FINISH_REASON_STOP
    assert ignored.token_ids == expected
    assert ignored.finish_reason == decode_pb2.FINISH_REASON_LENGTH


async def test_the_context_of_the_model_bounds_the_answer(runtime_settings, tiny_model, tiny_dir):
    length = tiny_model.max_context_tokens - 5
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        output = await fleet.around.complete(
            "r", prompt(length), max_new_tokens=500, ignore_eos=True
        )
        assert len(output.token_ids) == 5
        assert output.finish_reason == decode_pb2.FINISH_REASON_LENGTH


async def test_logprobs_come_with_every_token(runtime_settings, tiny_model, tiny_dir, bare):
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        output = await fleet.around.complete(
            "r", prompt(60), max_new_tokens=12, ignore_eos=True, logprobs=True, top_logprobs=3
        )
    assert output.token_ids == bare(prompt(60), 12)
    assert [scores.token_id for scores in output.logprobs] == output.token_ids
    for scores in output.logprobs:
        assert scores.top_ids[0] == scores.token_id
        assert scores.top_logprobs[0] == pytest.approx(scores.logprob)
        assert list(scores.top_logprobs) == sorted(scores.top_logprobs, reverse=True)
        assert len(scores.top_ids) == 3


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}


async def test_a_grammar_gives_valid_json_from_a_random_model(
    runtime_settings, tiny_model, tiny_dir
):
    vocabulary = load_tokenizer_info(tiny_dir, tiny_model.vocab_size, tiny_model.eos_token_ids)
    compiled = xgrammar.GrammarCompiler(vocabulary).compile_json_schema(
        json.dumps(SCHEMA), any_whitespace=False
    )
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        serialized = np.frombuffer(compiled.serialize_json().encode(), np.uint8)
        ticket = await fleet.prefill[0][0].tensors.publish(serialized)
        output = await fleet.around.complete(
            "r", prompt(60), max_new_tokens=60, temperature=1.0, compiled_grammar=ticket
        )
        assert output.finish_reason == decode_pb2.FINISH_REASON_STOP
    assert output.token_ids[-1] == EOS_TOKEN_ID
    answer = json.loads(make_tokenizer().decode(output.token_ids[:-1]))
    assert set(answer) == {"ok", "n"}


async def test_prefill_tells_the_first_token_where_nothing_but_the_logits_decides_it(
    runtime_settings, tiny_model, tiny_dir, bare
):
    """Decode sends it again, in its place."""
    expected = bare(prompt(60), 4)
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        plain = await fleet.around.complete("a", prompt(60), max_new_tokens=4, ignore_eos=True)
        assert len(plain.decode_ids) == 1
        assert plain.announced == [("", expected[0])]
        assert plain.token_ids == expected
        for number, wish in enumerate(
            (
                {"temperature": 1.0},
                {"logprobs": True},
                {"presence_penalty": 0.5},
                {"min_new_tokens": 2},
                {"stop_token_ids": [expected[0]]},
            )
        ):
            other = await fleet.around.complete(f"b{number}", prompt(60), max_new_tokens=4, **wish)
            assert other.announced == []
        await fleet.nothing_held()
