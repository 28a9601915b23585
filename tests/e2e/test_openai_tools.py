"""Tools, completions and tokens through the unmodified `openai` library and the default model."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from tests.e2e.chat import MODEL
from tests.support.fleet import RunningFleet

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": PARAMETERS,
        "strict": True,
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "get_time", "description": "The time."}}
QUESTION: Any = {"role": "user", "content": "How warm is it in Paris?"}


def ask(client: openai.OpenAI, **options: Any) -> Any:
    base = {"model": MODEL, "messages": [QUESTION], "temperature": 0, "max_tokens": 200}
    return client.chat.completions.create(**{**base, **options})


def test_a_tool_loop_of_several_turns(client: openai.OpenAI) -> None:
    messages = [QUESTION]
    for turn in range(3):
        answer = ask(
            client,
            messages=messages,
            tools=[WEATHER, CLOCK],
            tool_choice={"type": "function", "function": {"name": "get_weather"}},
            parallel_tool_calls=False,
        )
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls"
        [call] = choice.message.tool_calls
        assert call.function.name == "get_weather"
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
        result = {"role": "tool", "tool_call_id": call.id, "content": f"{20 + turn} degrees"}
        messages += [choice.message.model_dump(exclude_none=True), result]
    done = ask(client, messages=messages, tools=[WEATHER, CLOCK], tool_choice="none", max_tokens=24)
    assert done.choices[0].message.content
    assert not done.choices[0].message.tool_calls


def test_streamed_calls_are_those_of_the_whole_answer(client: openai.OpenAI) -> None:
    options = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    whole = ask(client, **options).choices[0].message.tool_calls[0]
    chunks = list(ask(client, stream=True, **options))
    deltas = [
        call
        for chunk in chunks
        for choice in chunk.choices
        for call in choice.delta.tool_calls or ()
    ]
    assert deltas[0].function.name == whole.function.name
    assert deltas[0].id.startswith("call_")
    arguments = "".join(delta.function.arguments or "" for delta in deltas)
    assert arguments == whole.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_tools_without_a_forced_call_may_be_answered_in_words(client: openai.OpenAI) -> None:
    hello: Any = [{"role": "user", "content": "Say hello."}]
    choice = ask(client, messages=hello, tools=[WEATHER], max_tokens=60).choices[0]
    assert choice.message.content or choice.message.tool_calls
    assert (choice.finish_reason == "tool_calls") == bool(choice.message.tool_calls)


def test_thinking_turned_off_is_accepted(client: openai.OpenAI) -> None:
    answer = ask(client, reasoning_effort="none", max_tokens=8)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_an_answer_continues_what_the_client_began(client: openai.OpenAI) -> None:
    begun: Any = {"role": "assistant", "content": "The capital of France is"}
    messages = [{"role": "user", "content": "What is the capital of France?"}, begun]
    extra = {"continue_final_message": True}
    answer = ask(client, messages=messages, max_tokens=8, extra_body=extra)
    assert "Paris" in answer.choices[0].message.content


def test_a_biased_token_is_forced(client: openai.OpenAI, shared_fleet: RunningFleet) -> None:
    base = shared_fleet.base_url
    token = httpx.post(f"{base}/tokenize", json={"prompt": "yes"}).json()["tokens"][0]
    answer = ask(client, logit_bias={str(token): 100}, max_tokens=3)
    assert answer.choices[0].message.content == "yesyesyes"
    whole = httpx.post(f"{base}/detokenize", json={"tokens": [token, token]}).json()
    assert whole == {"prompt": "yesyes"}


def test_completions_continue_text_and_tokens_alike(
    client: openai.OpenAI, shared_fleet: RunningFleet
) -> None:
    text = "The capital of France is"
    url = f"{shared_fleet.base_url}/tokenize"
    ids = httpx.post(url, json={"model": MODEL, "prompt": text}).json()["tokens"]
    options: Any = {"model": MODEL, "temperature": 0, "max_tokens": 6}
    both = client.completions.create(prompt=[text, "One, two,"], **options)
    one = client.completions.create(prompt=ids, logprobs=1, **options)
    assert both.choices[0].text == one.choices[0].text
    assert "Paris" in one.choices[0].text
    assert len(one.choices[0].logprobs.tokens) == one.usage.completion_tokens
    chunks = client.completions.create(prompt=text, stream=True, **options)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == one.choices[0].text


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"messages": [QUESTION, {"role": "tool", "tool_call_id": "x", "content": "y"}]},
            "messages[1].tool_call_id",
        ),
    ],
)
def test_wrong_tools_are_typed_errors(client: openai.OpenAI, options: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **options)
    assert caught.value.param == param
