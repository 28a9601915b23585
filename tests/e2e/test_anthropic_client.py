"""The `anthropic` library works unmodified."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema
import pytest

from tests.e2e.chat import MODEL
from tests.support.fleet import RunningFleet
from tests.support.pdf import make_pdf

ASK = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0}  # newer versions of the library have no argument for it
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
FILES = {
    "name": "list_files",
    "description": "Files of a folder",
    "input_schema": {"type": "object", "properties": {}, "additionalProperties": False},
}


@pytest.fixture
def messages(shared_fleet: RunningFleet) -> Iterator[anthropic.Anthropic]:
    """The official client, without retries that would hide errors."""
    with anthropic.Anthropic(
        base_url=shared_fleet.base_url, api_key="unused", max_retries=0, timeout=60.0
    ) as client:
        yield client


def ask(client: anthropic.Anthropic, **options: Any) -> anthropic.types.Message:
    base = {"model": MODEL, "messages": ASK, "max_tokens": 24, "extra_body": GREEDY}
    return client.messages.create(**{**base, **options})


def deltas_of(client: anthropic.Anthropic, **options: Any) -> list[str]:
    base = {"model": MODEL, "messages": ASK, "max_tokens": 24, "extra_body": GREEDY}
    with client.messages.stream(**{**base, **options}) as stream:
        return list(stream.text_stream)


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_streaming_equals_non_streaming(messages: anthropic.Anthropic) -> None:
    whole = ask(messages, system="You are a helpful assistant.")
    with messages.messages.stream(
        model=MODEL,
        messages=ASK,
        system=[{"type": "text", "text": "You are a helpful assistant."}],
        max_tokens=24,
        extra_body=GREEDY,
    ) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert [block.to_dict() for block in streamed.content] == [
        block.to_dict() for block in whole.content
    ]
    assert (streamed.stop_reason, streamed.role) == (whole.stop_reason, "assistant")
    assert streamed.usage.output_tokens == whole.usage.output_tokens > 0
    assert "Paris" in text_of(whole)


def test_length_and_stop_sequences_end_an_answer(messages: anthropic.Anthropic) -> None:
    cut = ask(messages, max_tokens=3)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)
    stopped = ask(messages, stop_sequences=["unlikely", "Paris"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Paris")
    assert "Paris" not in text_of(stopped)


def test_a_prefill_is_continued_token_by_token(messages: anthropic.Anthropic) -> None:
    deltas = deltas_of(messages)
    cut = next(at for at in range(2, len(deltas)) if deltas[at].startswith(" "))
    begun = [*ASK, {"role": "assistant", "content": "".join(deltas[:cut])}]
    rest = deltas_of(messages, messages=begun, max_tokens=24 - cut)
    assert "".join(rest) == "".join(deltas[cut:])


def test_tokens_are_counted_as_they_are_billed(messages: anthropic.Anthropic) -> None:
    prompt: dict[str, Any] = {"system": "Be kind.", "messages": ASK, "tools": [WEATHER]}
    counted = messages.messages.count_tokens(model=MODEL, **prompt)
    usage = ask(messages, **prompt, max_tokens=1).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_pdf_counts_as_its_text(messages: anthropic.Anthropic) -> None:
    def count(source: dict[str, str]) -> int:
        content = [{"type": "document", "source": source}, {"type": "text", "text": "Sum up."}]
        asked: Any = [{"role": "user", "content": content}]
        return messages.messages.count_tokens(model=MODEL, messages=asked).input_tokens

    pages = ["The first page of a report.", "The second page of it."]
    data = base64.b64encode(make_pdf(pages)).decode()
    pdf = {"type": "base64", "media_type": "application/pdf", "data": data}
    text = {"type": "text", "media_type": "text/plain", "data": "\n\n".join(pages)}
    assert count(pdf) == count(text)


def test_models_are_listed(messages: anthropic.Anthropic) -> None:
    (model,) = messages.models.list()
    assert model.id == messages.models.retrieve(MODEL).id == MODEL


def test_a_repeated_prompt_is_read_from_the_cache(messages: anthropic.Anthropic) -> None:
    long = [{"role": "user", "content": "Say it again. " * 120}]
    first = ask(messages, messages=long, max_tokens=1).usage
    again = ask(messages, messages=long, max_tokens=1).usage
    assert again.cache_read_input_tokens
    total = first.input_tokens + (first.cache_read_input_tokens or 0)
    assert again.input_tokens + again.cache_read_input_tokens == total


def test_a_tool_loop_of_several_turns(messages: anthropic.Anthropic) -> None:
    history: list[Any] = [{"role": "user", "content": "Weather in Paris? Use the tool."}]
    asked = {"tools": [WEATHER, FILES], "max_tokens": 128}
    for name in ("get_weather", "list_files", "get_weather"):
        choice = {"type": "tool", "name": name, "disable_parallel_tool_use": True}
        answer = ask(messages, messages=history, tool_choice=choice, **asked)
        assert answer.stop_reason == "tool_use"
        (call,) = [block for block in answer.content if block.type == "tool_use"]
        assert call.name == name
        schema = (WEATHER if name == "get_weather" else FILES)["input_schema"]
        jsonschema.validate(call.input, schema)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny, 21 degrees"}
        history += [
            {"role": "assistant", "content": [block.to_dict() for block in answer.content]},
            {"role": "user", "content": [result]},
        ]
    said = ask(messages, messages=history, tool_choice={"type": "none"}, **asked)
    assert said.stop_reason in ("end_turn", "max_tokens")
    assert {block.type for block in said.content} == {"text"}


def test_a_streamed_call_equals_a_whole_one(messages: anthropic.Anthropic) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Weather in Oslo for 3 days?"}],
        "tools": [WEATHER],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "max_tokens": 128,
        "extra_body": GREEDY,
    }
    whole = messages.messages.create(**options)
    with messages.messages.stream(**options) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message()
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    (call,) = [block for block in whole.content if block.type == "tool_use"]
    (same,) = [block for block in streamed.content if block.type == "tool_use"]
    assert (same.name, same.input) == (call.name, call.input)
    assert json.loads("".join(parts)) == call.input


def test_a_call_that_is_cut_shows_the_same_input_both_ways(messages: anthropic.Anthropic) -> None:
    options: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Weather in Oslo for 3 days?"}],
        "tools": [WEATHER],
        "tool_choice": {"type": "tool", "name": "get_weather"},
        "max_tokens": 20,
    }
    whole = ask(messages, **options)
    with messages.messages.stream(model=MODEL, **options, extra_body=GREEDY) as stream:
        streamed = stream.get_final_message()
    assert whole.stop_reason == streamed.stop_reason == "max_tokens"
    (cut,) = [block for block in whole.content if block.type == "tool_use"]
    (same,) = [block for block in streamed.content if block.type == "tool_use"]
    assert cut.input == same.input
    assert whole.model_extra and "content[0].input" in whole.model_extra["warnings"][-1]


def test_an_answer_in_json(messages: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    shape = {"format": {"type": "json_schema", "schema": schema}}
    answer = ask(messages, output_config=shape, max_tokens=200)
    if answer.stop_reason == "end_turn":
        jsonschema.validate(json.loads(text_of(answer)), schema)
    else:
        assert answer.stop_reason == "max_tokens"


def test_errors_are_typed_and_say_what_is_wrong(messages: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as wrong:
        ask(
            messages,
            extra_body={"temperature": 9},
            messages=[{"role": "user", "content": [{"type": "odd"}]}],
        )
    error = wrong.value.body["error"]  # type: ignore[index,call-overload]
    assert error["type"] == "invalid_request_error"
    assert "temperature" in error["message"] and "messages[0].content[0].type" in error["message"]
    assert wrong.value.request_id
    with pytest.raises(anthropic.NotFoundError) as gone:
        ask(messages, model="nope")
    assert gone.value.body["error"]["type"] == "not_found_error"  # type: ignore[index,call-overload]
    with (
        pytest.raises(anthropic.BadRequestError),
        messages.messages.stream(model=MODEL, messages=ASK, max_tokens=0),
    ):
        pass
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        ask(messages, max_tokens=10_000_000)


async def test_an_abandoned_stream_frees_its_place(shared_fleet: RunningFleet) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=shared_fleet.base_url, api_key="unused", max_retries=0, timeout=60.0
    ) as client:
        for _ in range(3):
            stream = await client.messages.create(
                model=MODEL, messages=ASK, max_tokens=2000, stream=True
            )
            async for event in stream:
                if event.type == "content_block_delta":
                    break
            await stream.close()
        done = await client.messages.create(model=MODEL, messages=ASK, max_tokens=4)
    assert done.usage.output_tokens
