"""Penalties, biases and the minimum length, from the job on the queue to the tokens."""

from __future__ import annotations

import pytest
from rorqual_proto.v1 import decode_pb2
from rorqual_proto.v1.generation_pb2 import LogitBias

from tests.integration.prefill_decode.conftest import prompt
from tests.integration.prefill_decode.fleet import SlowModel, running_fleet

NUM_TOKENS = 16


async def test_rules_hold_from_the_first_token_on(runtime_settings, tiny_model, tiny_dir, bare):
    plain = bare(prompt(60), NUM_TOKENS)
    ban = [LogitBias(token_id=token, bias=-100) for token in set(plain)]
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        options = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True}
        around = fleet.around
        banned = await around.complete("ban", prompt(60), logit_bias=ban, **options)
        forced = await around.complete(
            "force", prompt(60), logit_bias=[LogitBias(token_id=77, bias=100)], **options
        )
        present = await around.complete("p", prompt(60), presence_penalty=1e6, **options)
        repeated = await around.complete("r", prompt(60), repetition_penalty=1e6, **options)
        untouched = await around.complete("none", prompt(60), **options)
        await fleet.nothing_held()
    assert not set(banned.token_ids) & set(plain)
    assert forced.token_ids == [77] * NUM_TOKENS
    assert len(set(present.token_ids)) == NUM_TOKENS
    assert len(set(repeated.token_ids) - set(prompt(60))) == NUM_TOKENS
    assert untouched.token_ids == plain


async def test_an_answer_does_not_end_before_its_minimum(
    runtime_settings, tiny_model, tiny_dir, bare
):
    plain = bare(prompt(60), 4)
    model = SlowModel(tiny_model, 0.0)
    model.eos_token_ids = (plain[0],)
    async with running_fleet(runtime_settings, model, tiny_dir) as fleet:
        short = await fleet.around.complete("a", prompt(60), max_new_tokens=8)
        longer = await fleet.around.complete("b", prompt(60), max_new_tokens=8, min_new_tokens=3)
    assert short.token_ids == plain[:1]
    assert len(longer.token_ids) >= 3
    assert plain[0] not in longer.token_ids[:3]


@pytest.mark.parametrize(
    "rules", [{"logit_bias": [LogitBias(token_id=1 << 20, bias=1)]}, {"presence_penalty": "nan"}]
)
async def test_rules_that_make_no_sense_end_one_request_only(
    runtime_settings, tiny_model, tiny_dir, bare, rules
):
    rules = {name: float(rule) if rule == "nan" else rule for name, rule in rules.items()}
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        bad = await fleet.around.complete("bad", prompt(60), **rules)
        good = await fleet.around.complete("good", prompt(60), max_new_tokens=4, ignore_eos=True)
        await fleet.nothing_held()
    assert bad.finish_reason == decode_pb2.FINISH_REASON_ERROR
    assert good.token_ids == bare(prompt(60), 4)
