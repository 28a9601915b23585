"""Chat Completions and Completions answers: the same streamed or whole, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion import Completion
from rorqual_recipe.conversation import Conversation, ParsedRequest, SamplingOptions
from rorqual_recipe.output.events import (
    AnswerEvent,
    AnswerFinished,
    ContentDelta,
    FinishReason,
    OutputWarning,
    ReasoningDelta,
    TokenLogprob,
    ToolArgumentsDelta,
    ToolCallBegan,
    ToolCallEnded,
)
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import AnswerFacts, TokenUsage
from rorqual_recipe.protocols.chat.echo import ChatEcho
from rorqual_recipe.tokens.vocabulary import Vocabulary

USAGE = TokenUsage(prompt_tokens=21, cached_tokens=8, completion_tokens=5, reasoning_tokens=2)
VOCABULARY = Vocabulary((b"ab", b"\xf0\x9f", " é".encode()), {}, strips_first_space=False)
CALLED = AnswerFinished(FinishReason.TOOL_CALLS)
STOPPED = AnswerFinished(FinishReason.STOP)
CALLS: list[AnswerEvent] = [
    ToolCallBegan(0, "call_a", "f"),
    ToolArgumentsDelta(0, '{"a": '),
    ToolArgumentsDelta(0, '"é"}'),
    ToolCallEnded(0, '{"a": "é"}'),
    ToolCallBegan(1, "call_b", 'g"', is_custom=True),
    ToolArgumentsDelta(1, "free\ntext"),
    ToolCallEnded(1, "free\ntext"),
    CALLED,
]


def writer_of(
    *,
    stream: bool,
    protocol: str = "chat_completions",
    thinks: bool = False,
    logprobs: bool = False,
    **fields: Any,
):
    facts = AnswerFacts("r1", "m", 7, "fp_x", vocabulary=VOCABULARY, thinks=thinks)
    sampling = SamplingOptions(logprobs=logprobs, top_logprobs=1)
    parsed = ParsedRequest("m", Conversation(()), sampling, stream=stream, **fields)
    return PROTOCOLS[protocol].make_writer(facts, parsed)


def body_of(events: Sequence[AnswerEvent], **fields: Any) -> dict[str, Any]:
    writer = writer_of(stream=False, **fields)
    assert writer.write(0, events, USAGE) == []
    return json.loads(b"".join(writer.finish(USAGE)))


def chunks_of(
    events: Sequence[AnswerEvent], cuts: Sequence[int] = (), **fields: Any
) -> list[dict[str, Any]]:
    writer = writer_of(stream=True, **fields)
    frames: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        frames += writer.write(0, events[start:end], USAGE)
    frames += writer.finish(USAGE)
    assert frames.pop() == b"data: [DONE]\n\n"
    for frame in frames:
        assert frame.startswith(b"data: {")
        assert frame.endswith(b"}\n\n")
        assert frame.count(b"\n") == 2
    return [json.loads(frame[6:]) for frame in frames]


def put_together(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of its chunks."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                _add_call(message["tool_calls"], call)
            message["finish_reason"] = choice["finish_reason"]
    return message


def _add_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    if delta["index"] == len(calls):
        calls.append(json.loads(json.dumps(delta)))
        return
    call = calls[delta["index"]]
    kind, field = ("custom", "input") if "custom" in delta else ("function", "arguments")
    call[kind][field] += delta[kind][field]


EVENTS = st.lists(
    st.builds(ReasoningDelta, st.text(max_size=5))
    | st.builds(ContentDelta, st.text(max_size=5))
    | st.just(OutputWarning("w")),
    max_size=6,
).flatmap(lambda head: st.sampled_from([[*head, *CALLS], [*head, STOPPED]]))


@given(events=EVENTS, draw=st.data())
@settings(max_examples=100, deadline=None)
def test_any_split_of_a_stream_says_what_the_body_says(events, draw) -> None:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(events)), max_size=4)))
    streamed = put_together(chunks_of(events, cuts, thinks=True))
    body = body_of(events, thinks=True)
    message = body["choices"][0]["message"]
    assert streamed["content"] == message["content"]
    assert streamed["reasoning_content"] == message["reasoning_content"]
    assert streamed["tool_calls"] == message.get("tool_calls", [])
    assert streamed["finish_reason"] == body["choices"][0]["finish_reason"]
    ChatCompletion.model_validate(body)
    assert (body["choices"][0]["finish_reason"] == "tool_calls") == bool(streamed["tool_calls"])


def test_chunks_are_those_of_the_reference() -> None:
    chunks = chunks_of([ReasoningDelta("hm"), ContentDelta("hi"), STOPPED], thinks=True)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [
        {"role": "assistant", "content": "", "reasoning_content": None},
        {"content": None, "reasoning_content": "hm"},
        {"content": "hi", "reasoning_content": None},
        {"content": "", "reasoning_content": None},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, None, "stop"]
    assert {(c["id"], c["created"], c["system_fingerprint"]) for c in chunks} == {
        ("chatcmpl-r1", 7, "fp_x")
    }
    plain = chunks_of([ContentDelta("hi"), STOPPED])
    assert plain[1]["choices"][0]["delta"] == {"content": "hi"}
    for chunk in chunks + plain:
        ChatCompletionChunk.model_validate(chunk)


def test_usage_is_complete_and_sent_once() -> None:
    usage = {
        "prompt_tokens": 21,
        "completion_tokens": 5,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 2},
        "prompt_cache_hit_tokens": 8,
        "prompt_cache_miss_tokens": 13,
    }
    assert body_of([STOPPED])["usage"] == usage
    chunks = chunks_of([ContentDelta("a"), STOPPED])
    assert [chunk.get("usage") for chunk in chunks] == [None, None, usage]
    asked = chunks_of([ContentDelta("a"), STOPPED], include_usage=True)
    assert [chunk["usage"] for chunk in asked] == [None, None, None, usage]
    assert asked[-1]["choices"] == []


def test_the_last_choice_to_end_carries_the_usage() -> None:
    writer = writer_of(stream=True, num_choices=2)
    frames = writer.write(1, [STOPPED], USAGE) + writer.write(0, [STOPPED], USAGE)
    assert [b'"usage":{' in frame for frame in frames] == [False, False, False, True]


def test_calls_have_index_id_and_kind() -> None:
    calls = body_of(CALLS)["choices"][0]["message"]["tool_calls"]
    assert calls == [
        {
            "index": 0,
            "id": "call_a",
            "type": "function",
            "function": {"name": "f", "arguments": '{"a": "é"}'},
        },
        {
            "index": 1,
            "id": "call_b",
            "type": "custom",
            "custom": {"name": 'g"', "input": "free\ntext"},
        },
    ]


def test_functions_of_the_old_form_are_answered_in_it() -> None:
    echo = ChatEcho(is_legacy=True)
    events = [*CALLS[:4], CALLED]
    choice = body_of(events, echo=echo)["choices"][0]
    assert choice["message"]["function_call"] == {"name": "f", "arguments": '{"a": "é"}'}
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "function_call"
    deltas = [c["choices"][0]["delta"] for c in chunks_of(events, echo=echo)]
    assert deltas[1] == {"function_call": {"name": "f", "arguments": ""}}
    assert deltas[2] == {"function_call": {"arguments": '{"a": "é"}'}}


def test_what_is_wrong_with_an_answer_is_said() -> None:
    events = [
        ToolCallBegan(0, "call_a", "f"),
        ToolArgumentsDelta(0, "{"),
        ToolCallEnded(0, "{", problem="not valid JSON", is_cut=True),
        OutputWarning("odd"),
        AnswerFinished(FinishReason.LENGTH),
    ]
    said = ["top_p: changed", "tool_calls[0]: not valid JSON", "odd"]
    assert body_of(events, warnings=said[:1])["warnings"] == said
    chunks = chunks_of(events)
    assert chunks[-1]["warnings"] == said[1:]
    assert all("warnings" not in chunk for chunk in chunks[:-1])
    assert "warnings" not in body_of([STOPPED])


def test_logprobs_of_content_and_reasoning() -> None:
    thought = ReasoningDelta("ab", (TokenLogprob(0, -0.5, ((0, -0.5),)),))
    said = ContentDelta("é", (TokenLogprob(1, -20000.0), TokenLogprob(2, -1.0)))
    shown = body_of([thought, said, STOPPED], logprobs=True)["choices"][0]["logprobs"]
    assert [entry["token"] for entry in shown["content"]] == ["\\xf0\\x9f", " é"]
    assert shown["content"][0]["logprob"] == -9999.0
    assert shown["content"][0]["bytes"] == [0xF0, 0x9F]
    assert shown["reasoning_content"][0]["top_logprobs"][0]["token"] == "ab"
    chunks = chunks_of([thought, said, STOPPED], logprobs=True)
    assert len(chunks[1]["choices"][0]["logprobs"]["reasoning_content"]) == 1
    assert len(chunks[2]["choices"][0]["logprobs"]["content"]) == 2


@pytest.mark.parametrize("stream", [True, False])
def test_completions_count_offsets_in_characters(stream: bool) -> None:
    first = ContentDelta(" é", (TokenLogprob(2, -1.0, ((2, -1.0),)),))
    second = ContentDelta("ab", (TokenLogprob(0, -2.0),))
    events = [first, OutputWarning("w"), second, STOPPED]
    fields = {"protocol": "completions", "logprobs": True}
    if stream:
        chunks = chunks_of(events, **fields)
        shown = [c["choices"][0]["logprobs"] for c in chunks[:2]]
        text = "".join(c["choices"][0]["text"] for c in chunks)
        offsets = [offset for entry in shown for offset in entry["text_offset"]]
    else:
        body = body_of(events, **fields)
        Completion.model_validate(body)
        text = body["choices"][0]["text"]
        offsets = body["choices"][0]["logprobs"]["text_offset"]
        assert body["choices"][0]["logprobs"]["top_logprobs"][0] == {" é": -1.0}
    assert (text, offsets) == (" éab", [0, 2])
