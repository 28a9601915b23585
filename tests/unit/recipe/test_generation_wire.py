"""What a request asks of the generation arrives on the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rorqual_proto.v1 import generation_pb2
from rorqual_proto.v1.recipe_pb2 import EncodeRequest
from rorqual_proto.v1.tensor_pb2 import Payload
from rorqual_recipe.convert import encoded_to_wire
from rorqual_recipe.problems import RequestRefused

from tests.unit.recipe.conftest import Encode

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "strict": True,
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}


def generations(encode: Encode, **fields: Any) -> list[generation_pb2.Generation]:
    request = EncodeRequest(request_id="r")
    reply = encoded_to_wire(request, encode(**fields), [Payload()], "recipe-1")
    return list(reply.encoded.generations)


def test_every_sampling_rule_is_there(encode: Encode) -> None:
    (generation,) = generations(
        encode,
        frequency_penalty=0.5,
        presence_penalty=-1.5,
        repetition_penalty=1.25,
        logit_bias={"7": -100, "8": 2.5},
        min_tokens=5,
        max_tokens=9,
    )
    sampling = generation.sampling
    assert sampling.frequency_penalty == 0.5
    assert sampling.presence_penalty == -1.5
    assert sampling.repetition_penalty == 1.25
    assert {b.token_id: b.bias for b in sampling.logit_bias} == {7: -100, 8: 2.5}
    assert (sampling.min_new_tokens, sampling.max_new_tokens) == (5, 9)


def test_rules_that_nobody_asked_for_take_no_space(encode: Encode) -> None:
    (generation,) = generations(encode)
    assert not generation.sampling.logit_bias
    assert generation.sampling.repetition_penalty in (0.0, 1.0)
    assert not generation.HasField("constraint")


def test_every_choice_is_held_to_the_same_call(encode: Encode) -> None:
    choice = {"type": "function", "function": {"name": "look"}}
    first, second = generations(encode, tools=[TOOL], tool_choice=choice, n=2)
    assert first.constraint == second.constraint
    assert first.constraint.kind == generation_pb2.CONSTRAINT_KIND_STRUCTURAL_TAG
    source = json.dumps(json.loads(first.constraint.source))
    assert '"param": "tools[0].function.parameters"' in source


def test_a_shape_knows_the_field_it_came_from(encode: Encode) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 1}}}
    (generation,) = generations(encode, response_format=shape)
    assert generation.constraint.kind == generation_pb2.CONSTRAINT_KIND_JSON_SCHEMA
    assert generation.constraint.param == "response_format.json_schema.schema"


@pytest.mark.parametrize("bias", [{"x": 1}, {"7": 101}])
def test_a_bias_of_no_token_is_refused_by_its_field(encode: Encode, bias: dict) -> None:
    with pytest.raises(RequestRefused) as caught:
        encode(logit_bias=bias)
    assert [problem.param for problem in caught.value.problems] == [
        f"logit_bias.{next(iter(bias))}"
    ]
