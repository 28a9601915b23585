"""Messages answers: the same message streamed or whole, signed thinking, flagged inputs, errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import from_json
from rorqual_recipe.conversation import Conversation, ParsedRequest, SamplingOptions
from rorqual_recipe.output.events import (
    AnswerEvent,
    AnswerFinished,
    ContentDelta,
    FinishReason,
    OutputWarning,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallBegan,
    ToolCallEnded,
)
from rorqual_recipe.problems import Problem, context_too_long, unsupported
from rorqual_recipe.protocols import DIRECT_PROTOCOLS, PROTOCOLS
from rorqual_recipe.protocols.base import AnswerFacts, ParseLimits, TokenUsage
from rorqual_runtime.errors import ErrorCode, NoCapacity, RequestTooLarge

MESSAGES = PROTOCOLS["messages"]
KEY = b"a key"
USAGE = TokenUsage(prompt_tokens=21, cached_tokens=8, completion_tokens=5, reasoning_tokens=2)
STOPPED = AnswerFinished(FinishReason.STOP)


def writer_of(*, stream: bool, warnings: Sequence[str] = ()):
    facts = AnswerFacts("r1", "m", 0, None, vocabulary=None, signing_key=KEY)  # type: ignore[arg-type]
    parsed = ParsedRequest(
        "m", Conversation(()), SamplingOptions(), stream=stream, warnings=list(warnings)
    )
    return MESSAGES.make_writer(facts, parsed)


def frames_of(events: Sequence[AnswerEvent], cuts: Sequence[int] = ()) -> list[bytes]:
    writer = writer_of(stream=True)
    frames: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        frames += writer.write(0, events[start:end], USAGE)
    return frames + writer.finish(USAGE)


def events_of(frames: Sequence[bytes]) -> list[dict[str, Any]]:
    found = []
    for frame in frames:
        name, data, *rest = frame.decode().split("\n")
        assert rest == ["", ""]
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def whole(events: Sequence[AnswerEvent], warnings: Sequence[str] = ()) -> dict[str, Any]:
    writer = writer_of(stream=False, warnings=warnings)
    parts = [part for event in events for part in writer.write(0, [event], USAGE)]
    return json.loads(b"".join([*parts, *writer.finish(USAGE)]))


def put_together(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of a stream."""
    message: dict[str, Any] = {}
    texts: dict[int, str] = {}
    fields = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
    for event in events:
        kind, index = event["type"], event.get("index")
        if kind == "message_start":
            message = event["message"]
        elif kind == "content_block_start":
            assert index == len(message["content"])
            message["content"].append(event["content_block"])
        elif kind == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            texts[index] = texts.get(index, "") + event["delta"]["partial_json"]
        elif kind == "content_block_delta":
            field = fields[event["delta"]["type"]]
            message["content"][index][field] += event["delta"][field]
        elif kind == "message_delta":
            extra = {"warnings": event["warnings"]} if "warnings" in event else {}
            message |= {**event["delta"], "usage": event["usage"], **extra}
    for index, text in texts.items():
        message["content"][index]["input"] = from_json(text, allow_partial=True)
    return message


def called(index: int, arguments: Sequence[str], **ended: Any) -> list[AnswerEvent]:
    pieces = [ToolArgumentsDelta(index, piece) for piece in arguments]
    end = ToolCallEnded(index, "".join(arguments), **ended)
    return [ToolCallBegan(index, f"call_{index}", "f"), *pieces, end]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
CALL = st.sampled_from([["{}"], ['{"a": ', "1.50", "}"], ['{"ü": ["x\\n"]}']])


@st.composite
def answers(draw: st.DrawFn) -> list[AnswerEvent]:
    events: list[AnswerEvent] = [ReasoningDelta(text) for text in draw(st.lists(TEXT, max_size=3))]
    events += [ContentDelta(text) for text in draw(st.lists(TEXT, max_size=3))]
    for index, arguments in enumerate(draw(st.lists(CALL, max_size=3))):
        events += called(index, arguments)
        events += [ContentDelta(text) for text in draw(st.lists(TEXT, max_size=1))]
    reason = draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
    return [*events, AnswerFinished(reason)]


@given(answers(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_stream_says_the_same_as_a_body_however_it_is_cut(events, data) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=3)))
    assert put_together(events_of(frames_of(events, cuts))) == whole(events)


@given(answers())
@settings(max_examples=100, deadline=None)
def test_blocks_are_opened_once_closed_once_and_never_empty(events) -> None:
    names = [event["type"] for event in events_of(frames_of(events))]
    assert (names[0], names[-2:]) == ("message_start", ["message_delta", "message_stop"])
    is_open = has_delta = False
    for name in names[1:-2]:
        if name == "content_block_start":
            assert not is_open
            is_open, has_delta = True, False
        elif name == "content_block_delta":
            assert is_open
            has_delta = True
        elif name == "content_block_stop":
            assert is_open and has_delta
            is_open = False
    assert not is_open
    assert names.count("ping") == (1 if "content_block_start" in names else 0)


def test_the_lifecycle_of_a_stream() -> None:
    events = [ReasoningDelta("hm"), ContentDelta("Hi"), *called(0, ["{", "}"])]
    frames = frames_of([*events, AnswerFinished(FinishReason.TOOL_CALLS)])
    start, *rest = events_of(frames)
    assert start["message"]["usage"] == {
        "input_tokens": 13,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 8,
        "output_tokens": 0,
        "service_tier": "standard",
    }
    assert start["message"]["id"] == "msg_r1"
    assert start["message"]["stop_reason"] is None
    steps = [(event["type"], event.get("delta", {}).get("type")) for event in rest]
    assert steps == [
        ("content_block_start", None),
        ("ping", None),
        ("content_block_delta", "thinking_delta"),
        ("content_block_delta", "signature_delta"),
        ("content_block_stop", None),
        ("content_block_start", None),
        ("content_block_delta", "text_delta"),
        ("content_block_stop", None),
        ("content_block_start", None),
        ("content_block_delta", "input_json_delta"),
        ("content_block_stop", None),
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert rest[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert rest[-2]["usage"]["output_tokens"] == 5
    assert rest[-2]["usage"]["output_tokens_details"] == {"thinking_tokens": 2}


@pytest.mark.parametrize(
    ("finished", "reason", "stop"),
    [
        (STOPPED, "end_turn", None),
        (AnswerFinished(FinishReason.STOP, "END"), "stop_sequence", "END"),
        (AnswerFinished(FinishReason.LENGTH), "max_tokens", None),
        (AnswerFinished(FinishReason.TOOL_CALLS), "tool_use", None),
        (AnswerFinished(FinishReason.CONTENT_FILTER), "refusal", None),
    ],
)
def test_why_an_answer_ended(finished: AnswerFinished, reason: str, stop: str | None) -> None:
    for message in (whole([finished]), put_together(events_of(frames_of([finished])))):
        assert (message["stop_reason"], message["stop_sequence"]) == (reason, stop)
        assert message["content"] == []


def test_thinking_comes_back_verified_and_a_changed_one_is_noticed() -> None:
    answer = whole([ReasoningDelta("I think "), ReasoningDelta("so"), ContentDelta("yes"), STOPPED])
    limits = ParseLimits(max_choices=1, has_vision=False, signing_key=KEY)

    def warnings_of(thinking: dict[str, Any], limits: ParseLimits = limits) -> list[str]:
        history = [
            *({"role": "user", "content": "q"}, {"role": "assistant", "content": [thinking]}),
            {"role": "user", "content": "b"},
        ]
        body = {"model": "m", "messages": history}
        return MESSAGES.parse(json.dumps(body).encode(), limits).warnings

    thinking = answer["content"][0]
    assert thinking["thinking"] == "I think so"
    assert warnings_of(thinking) == []
    changed = "messages[1].content[0].signature"
    assert warnings_of({**thinking, "thinking": "I think no"})[0].startswith(changed)
    other = ParseLimits(max_choices=1, has_vision=False, signing_key=b"another key")
    assert warnings_of(thinking, other)[0].startswith(changed)


def test_an_input_is_written_as_the_model_spelled_it() -> None:
    events = called(0, ['{"n": 1.50, "big": 12345678901234567890123}'])
    writer = writer_of(stream=False)
    writer.write(0, [*events, STOPPED], USAGE)
    assert b'"input":{"n": 1.50, "big": 12345678901234567890123}' in b"".join(writer.finish(USAGE))


@pytest.mark.parametrize(
    ("arguments", "ended", "readable"),
    [
        ('{"a": "hel', {"is_cut": True, "problem": "cut"}, {}),
        ('{"a": 1, "b": [1, 2', {"is_cut": True}, {"a": 1, "b": [1]}),
        ('{"a": True}', {"problem": "is not valid JSON"}, {}),
    ],
)
def test_inputs_that_are_no_json_are_flagged(arguments: str, ended: dict, readable: dict) -> None:
    answer = whole([*called(0, [arguments], **ended), AnswerFinished(FinishReason.LENGTH)])
    (block,) = answer["content"]
    assert block["partial_json"] == arguments
    assert {**readable, **block["input"]} == block["input"]
    assert [warning.split(":")[0] for warning in answer["warnings"]] == ["content[0].input"]


def test_warnings_are_there_when_there_are_any() -> None:
    assert "warnings" not in whole([STOPPED])
    answer = whole([OutputWarning("odd markup"), STOPPED], ["top_p: ignored"])
    assert answer["warnings"] == ["top_p: ignored", "odd markup"]
    streamed = put_together(events_of(frames_of([OutputWarning("odd markup"), STOPPED])))
    assert streamed["warnings"] == ["odd markup"]


def test_a_large_body_comes_in_parts() -> None:
    writer = writer_of(stream=False)
    writer.write(0, [ContentDelta("ü" * 300_000), STOPPED], USAGE)
    parts = writer.finish(USAGE)
    assert max(map(len, parts)) <= 128 << 10
    assert json.loads(b"".join(parts))["content"][0]["text"] == "ü" * 300_000


@pytest.mark.parametrize("adapter", [MESSAGES, DIRECT_PROTOCOLS["count_tokens"]])
def test_errors_have_anthropics_shape_and_types(adapter) -> None:
    def error_of(rendered) -> tuple[int, str, str]:
        body = json.loads(rendered.body_json)
        assert body["type"] == "error"
        assert rendered.sse_frames == b"event: error\ndata: " + rendered.body_json + b"\n\n"
        return rendered.http_status, body["error"]["type"], body["error"]["message"]

    both = [Problem("a", "is wrong"), unsupported("b", "is too much")]
    assert error_of(adapter.render_refusal(both)) == (
        *(400, "invalid_request_error", "a: is wrong; b: is too much"),
    )
    long = context_too_long("max_tokens", "there is no room")
    assert error_of(adapter.render_refusal([long]))[2] == "max_tokens: there is no room"
    gone = Problem("model", "is gone", ErrorCode.NOT_FOUND)
    assert error_of(adapter.render_refusal([gone]))[:2] == (404, "not_found_error")
    busy = adapter.render_error(NoCapacity())
    assert (*error_of(busy)[:2], busy.retry_after_s) == (503, "overloaded_error", 1)
    large = adapter.render_error(RequestTooLarge(2, 1))
    assert error_of(large)[:2] == (413, "request_too_large")


def test_a_stream_that_breaks_tells_its_tokens_first() -> None:
    writer = writer_of(stream=True)
    assert events_of([writer.write_failure(NoCapacity("full"), USAGE)])[0]["type"] == "error"
    writer.write(0, [ContentDelta("Hi")], USAGE)
    frames = writer.write_failure(NoCapacity("full"), USAGE)
    told, error = events_of([frame + b"\n\n" for frame in frames.split(b"\n\n")[:-1]])
    assert told["delta"] == {"stop_reason": None, "stop_sequence": None}
    assert told["usage"]["output_tokens"] == 5
    assert error == {"type": "error", "error": {"type": "overloaded_error", "message": "full"}}
