"""An answer counts when it has come whole, once, and without an error: in every protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rorqual_cli.chaos.answers import Answer, AnswerReader


def _chat(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": finish}], "usage": None}


CHAT: list[Any] = [
    _chat("Hel"),
    _chat("lo", "stop"),
    {"choices": [], "usage": {"completion_tokens": 2}},
    "[DONE]",
]
MESSAGES: list[Any] = [
    {"type": "message_start", "message": {}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hel"}},
    {"type": "ping"},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "lo"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]
RESPONSES: list[Any] = [
    {"type": "response.created", "response": {}},
    {"type": "response.output_text.delta", "delta": "Hel"},
    {"type": "response.output_text.delta", "delta": "lo"},
    {"type": "response.completed", "response": {"usage": {"output_tokens": 2}}},
]
STREAMS = {"chat": CHAT, "messages": MESSAGES, "responses": RESPONSES}


def _read(events: list[Any]) -> Answer | None:
    reader = AnswerReader()
    for event in events:
        reader.feed(event if isinstance(event, str) else json.dumps(event))
    return reader.answer()


@pytest.mark.parametrize("name", STREAMS)
def test_a_whole_stream_is_an_answer(name: str) -> None:
    answer = _read(STREAMS[name])
    assert answer is not None
    assert ("".join(answer.texts.values()), answer.num_tokens) == ("Hello", 2)
    assert answer.finish


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_without_its_end_or_with_two_is_none(name: str) -> None:
    assert _read(STREAMS[name][:-1]) is None
    assert _read([*STREAMS[name], STREAMS[name][-1]]) is None


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "no"}},
        {"type": "error", "error": {"type": "overloaded_error"}},
        {"type": "error", "code": None, "message": "no"},
        {"type": "response.failed", "response": {"error": {"message": "no"}}},
    ],
)
def test_an_error_in_the_stream_is_none(error: dict[str, Any]) -> None:
    assert _read([*CHAT[:1], error, "[DONE]"]) is None


def test_what_is_said_twice_or_not_at_all_is_another_answer() -> None:
    answer = _read(CHAT)
    assert _read([CHAT[0], *CHAT]) != answer
    assert _read(CHAT[1:]) != answer
    assert _read(CHAT) == answer


def test_an_answer_in_one_piece_equals_its_stream() -> None:
    reader = AnswerReader()
    message = {"message": {"content": "Hello"}, "finish_reason": "stop"}
    reader.feed_body({"choices": [message], "usage": {"completion_tokens": 2}})
    assert reader.answer() == _read(CHAT)
