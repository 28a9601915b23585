"""The `openai` library's Responses API works unmodified, on a real fleet."""

from __future__ import annotations

import json

import jsonschema
import openai
import pytest
from openai.types.responses import Response

from tests.e2e.chat import MODEL

_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 16}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


def _ask(client: openai.OpenAI, **options: object) -> Response:
    base = {"model": MODEL, "input": "Say hello.", "temperature": 0, "max_output_tokens": 24}
    return client.responses.create(**{**base, **options})  # type: ignore[call-overload,no-any-return]


def test_streaming_equals_non_streaming(client: openai.OpenAI) -> None:
    whole = _ask(client)
    events = list(_ask(client, stream=True))  # type: ignore[call-overload]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    last = events[-1].response
    assert text == last.output_text == whole.output_text != ""
    assert (last.status, last.usage.output_tokens) == (whole.status, whole.usage.output_tokens)


def test_a_conversation_that_the_service_remembers(client: openai.OpenAI) -> None:
    first = _ask(client, input="My name is Ada.", metadata={"case": "memory"})
    second = _ask(client, input="What is my name?", previous_response_id=first.id)
    carried = [
        {"role": "user", "content": "My name is Ada."},
        *(item.to_dict() for item in first.output),
        {"role": "user", "content": "What is my name?"},
    ]
    assert _ask(client, input=carried).output_text == second.output_text
    read = client.responses.retrieve(second.id)
    assert (read.output_text, read.previous_response_id) == (second.output_text, first.id)
    listed = list(client.responses.input_items.list(second.id, order="asc"))
    assert [item.role for item in listed] == ["user", "assistant", "user"]
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)


def test_max_output_tokens_leaves_the_answer_incomplete(client: openai.OpenAI) -> None:
    done = _ask(client, input="Tell a long story.", max_output_tokens=3)
    assert done.status == "incomplete" and done.incomplete_details
    assert done.incomplete_details.reason == "max_output_tokens"
    assert done.usage and done.usage.output_tokens == 3


def test_a_schema_is_obeyed(client: openai.OpenAI) -> None:
    shape = {"type": "json_schema", "name": "person", "schema": _SCHEMA, "strict": True}
    done = client.responses.create(
        model=MODEL,
        input="Describe a person called Ada.",
        text={"format": shape},  # type: ignore[typeddict-item]
        max_output_tokens=300,
        extra_body={"seed": 3},
    )
    assert done.status == "completed"
    jsonschema.validate(json.loads(done.output_text), _SCHEMA)


def _answer_calls(done: Response) -> list[dict[str, str]]:
    """Results for every call of the answer; each call fits its tool."""
    calls = [item for item in done.output if item.type == "function_call"]
    assert done.status == "completed" and calls
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), _TOOL["parameters"])
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        for call in calls
    ]


def test_a_tool_loop_of_several_turns(client: openai.OpenAI) -> None:
    asked = {"tools": [_TOOL], "max_output_tokens": 200, "parallel_tool_calls": False}
    done = _ask(client, **asked, input="Weather in Paris?", tool_choice="required")
    for choice in ("required", "required", "none"):
        done = _ask(
            client,
            **asked,
            input=_answer_calls(done),
            previous_response_id=done.id,
            tool_choice=choice,
        )
    assert [item.type for item in done.output] == ["message"]


@pytest.mark.parametrize(
    ("options", "error", "param"),
    [
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"model": "nobody"}, openai.NotFoundError, "model"),
        ({"input": []}, openai.BadRequestError, "input"),
        ({"max_output_tokens": 10_000_000}, openai.BadRequestError, "max_output_tokens"),
        ({"input": "word " * 9000}, openai.BadRequestError, "input"),
        ({"previous_response_id": "resp_x"}, openai.BadRequestError, "previous_response_id"),
        ({"background": True}, openai.BadRequestError, "background"),
    ],
)
def test_errors_are_typed_and_name_the_field(
    client: openai.OpenAI,
    options: dict[str, object],
    error: type[openai.APIStatusError],
    param: str,
) -> None:
    with pytest.raises(error) as caught:
        _ask(client, **options)
    assert caught.value.body["param"] == param  # type: ignore[index]
    assert caught.value.response.headers["x-request-id"]
