"""What the caller may rely on: calls, shapes and sampling rules, whatever the model would say."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import openai
import pytest

from tests.e2e.chat import MODEL

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "days": {"$ref": "#/$defs/days"},
        "unit": {"enum": ["c", "f"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
    "$defs": {"days": {"enum": [1, 3, 10]}},
}


def tool(name: str, parameters: dict[str, Any], **fields: Any) -> dict[str, Any]:
    function = {"name": name, "description": "", "parameters": parameters, **fields}
    return {"type": "function", "function": function}


TOOLS = [tool("get_weather", WEATHER, strict=True), tool("get_time", {"type": "object"})]


def ask(client: openai.OpenAI, **options: Any) -> Any:
    base = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "How is the weather in Bern?"}],
        "max_tokens": 120,
    }
    return client.chat.completions.create(**{**base, **options}).choices[0]


@pytest.mark.parametrize("seed", range(10))
def test_a_forced_call_is_a_call_with_valid_arguments(client: openai.OpenAI, seed: int) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    answer = ask(client, tools=TOOLS, tool_choice=choice, seed=seed, parallel_tool_calls=False)
    (call,) = answer.message.tool_calls
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments), WEATHER)
    assert answer.finish_reason == "tool_calls"
    assert not answer.message.content


def test_required_means_some_call(client: openai.OpenAI) -> None:
    for seed in range(2):
        answer = ask(client, tools=TOOLS, tool_choice="required", seed=seed)
        assert answer.message.tool_calls
        for call in answer.message.tool_calls:
            assert isinstance(json.loads(call.function.arguments), dict)


def test_tools_beside_a_shape_give_one_of_the_two(client: openai.OpenAI) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [7]}}}
    for seed in range(2):
        answer = ask(client, tools=TOOLS, response_format=shape, seed=seed)
        if answer.message.tool_calls:
            assert json.loads(answer.message.tool_calls[0].function.arguments) is not None
        else:
            assert json.loads(answer.message.content) == 7


def test_definitions_integer_enums_and_formats_are_kept(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "size": {"$ref": "#/$defs/size"},
            "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{3}$"},
            "name": {"type": "string", "minLength": 3, "maxLength": 8},
        },
        "required": ["day", "size", "code", "name"],
        "$defs": {"size": {"enum": [10, 20, 40]}},
    }
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for seed in range(3):
        answer = json.loads(ask(client, response_format=shape, seed=seed).message.content)
        jsonschema.validate(answer, schema)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", answer["day"])


def test_a_regular_expression_holds(client: openai.OpenAI) -> None:
    shape = {"type": "regex", "regex": r"[A-Z][a-z]{2,8}, -?[0-9]{1,2} degrees"}
    for seed in range(3):
        content = ask(client, response_format=shape, seed=seed).message.content
        assert re.fullmatch(shape["regex"], content)


def test_a_bias_bans_and_forces(client: openai.OpenAI) -> None:
    plain = ask(client, temperature=0, max_tokens=1, logprobs=True).logprobs.content[0]
    token_ids = _token_ids(client, plain.token)
    banned = ask(client, temperature=0, max_tokens=1, logit_bias=dict.fromkeys(token_ids, -100))
    assert banned.message.content != plain.token
    (whale,) = _token_ids(client, " whale")
    forced = ask(client, temperature=0, max_tokens=5, logit_bias={whale: 100})
    assert forced.message.content.split() == ["whale"] * 5
    assert forced.finish_reason == "length"


def _token_ids(client: openai.OpenAI, text: str) -> list[str]:
    """Ids of a text, as a bias spells them."""
    body = {"model": MODEL, "prompt": text, "add_special_tokens": False}
    url = str(client.base_url).removesuffix("v1/") + "tokenize"
    return [str(token) for token in client.post(url, body=body, cast_to=dict)["tokens"]]


def test_a_penalty_lowers_repetition(client: openai.OpenAI) -> None:
    def repeated(**penalties: Any) -> float:
        question = [{"role": "user", "content": "Count from 1 to 3, over and over."}]
        answer = ask(client, messages=question, temperature=0, max_tokens=100, **penalties)
        words = answer.message.content.lower().split()
        return 1 - len(set(words)) / len(words)

    plain = repeated(extra_body={"min_tokens": 100})
    assert plain > 0.5
    for penalties in (
        {"presence_penalty": 2.0},
        {"frequency_penalty": 1.5},
        {"extra_body": {"repetition_penalty": 1.3}},
    ):
        assert repeated(**penalties) < plain


def test_an_answer_is_as_long_as_its_minimum(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Say only: yes"}],
        temperature=0,
        max_tokens=60,
        extra_body={"min_tokens": 50},
    )
    assert whole.usage and whole.usage.completion_tokens >= 50


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"tools": [tool("f", {"type": "object", "not": {}}, strict=True)]},
            "tools[0].function.parameters",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"uniqueItems": True}},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "regex", "regex": "[a"}}, "response_format.regex"),
        ({"logit_bias": {"999999": 1}}, "logit_bias.999999"),
    ],
)
def test_what_can_not_be_enforced_is_refused_by_its_field(
    client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert caught.value.param == param
