"""The conversation keeps what was said, and errors are the gateway's own words."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from rorqual_cli.chat import Conversation, served_model
from rorqual_cli.problems import CliError, ExitCode
from rorqual_cli.ps import load_text, uptime_text
from rorqual_proto.v1 import load_pb2

Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler) -> httpx.Client:
    return httpx.Client(base_url="http://gateway", transport=httpx.MockTransport(handler))


def stream(*events: object) -> httpx.Response:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
    return httpx.Response(200, text=": keep-alive\n\n" + "".join(lines))


def delta(text: str) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


def test_an_answer_is_streamed_and_remembered() -> None:
    asked: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        role = {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}
        return stream(role, delta("Hello"), delta(" there"), {"choices": []})

    conversation = Conversation(client(answer), "m", max_tokens=5)
    assert list(conversation.ask("hi")) == ["Hello", " there"]
    assert list(conversation.ask("again")) == ["Hello", " there"]
    assert asked[1]["max_tokens"] == 5
    assert [m["content"] for m in asked[1]["messages"]] == ["hi", "Hello there", "again"]  # type: ignore[attr-defined]


def test_a_stopped_answer_stays_as_far_as_it_came() -> None:
    conversation = Conversation(client(lambda _r: stream(delta("one"), delta("two"))), "m")
    pieces = conversation.ask("count")
    assert next(pieces) == "one"
    pieces.close()  # type: ignore[attr-defined]
    assert conversation.messages[-1] == {"role": "assistant", "content": "one"}


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(400, json={"error": {"message": "no such model"}}),
        stream({"error": {"message": "no such model"}}),
    ],
)
def test_an_error_is_told_in_the_gateways_words_and_the_question_is_taken_back(
    response: httpx.Response,
) -> None:
    conversation = Conversation(client(lambda _r: response), "m")
    with pytest.raises(CliError, match="no such model"):
        list(conversation.ask("hi"))
    assert conversation.messages == []


def test_no_gateway_names_the_remedy() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(CliError, match="make serve") as caught:
        served_model(client(refuse))
    assert caught.value.exit_code is ExitCode.NOT_RUNNING


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59, "59s"), (185, "3m05s"), (7800, "2h10m"), (100_800, "1d04h")],
)
def test_uptime_shows_the_two_largest_units(seconds: float, text: str) -> None:
    assert uptime_text(seconds) == text


def test_load_is_told_in_words() -> None:
    load = load_pb2.LoadReport(num_active_requests=2, num_used_pages=3, num_total_pages=10)
    load.decode.CopyFrom(load_pb2.DecodeLoad(num_running=2, max_running=64, step_s=0.02))
    assert load_text(load) == "2 active, 3/10 pages, 2/64 running, 20.0 ms a step"
    assert load_text(None) == "-"
    recipe = load_pb2.RecipeLoad(encoded_chars_total=400, cached_chars_total=300)
    assert load_text(load_pb2.LoadReport(recipe=recipe)) == "0 active, 75% of the text known"
