"""Answers of Responses: the same object streamed and not, and a lifecycle without gaps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from rorqual_recipe.conversation import ParsedRequest
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
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols.base import MAX_BODY_PART_BYTES, AnswerFacts, ParseLimits, TokenUsage
from rorqual_recipe.protocols.responses import Responses
from rorqual_recipe.protocols.responses.prior import Prior
from rorqual_recipe.sealing import SealBinding, Sealer
from rorqual_recipe.tokens.vocabulary import Vocabulary
from rorqual_runtime.errors import Unavailable

RESPONSES = Responses()
OWNER = SealBinding("t", "m")
SEALER = Sealer([b"k" * 32], ttl_s=1e9)
PRIOR = Prior(request_id="r1", binding=OWNER, sealer=SEALER, now_unix_s=5.0, why_not_stored="")
LIMITS = ParseLimits(max_choices=1, has_vision=False, prior=PRIOR)
VOCABULARY = Vocabulary((b"a", b"\xf0\x9f"), {2: b"<end>"}, strips_first_space=False)
FACTS = AnswerFacts("r1", "m", 5, None, VOCABULARY, clock=lambda: 9.9)
USAGE = TokenUsage(10, 4, 7, 3)
EVENTS: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
TOOLS = [
    {"type": "function", "name": "f", "parameters": None, "strict": None},
    {"type": "custom", "name": "calc"},
    {"type": "tool_search", "execution": "client"},
]


def parse(**fields: object) -> ParsedRequest:
    body = {"model": "m", "input": "q", **fields}
    return RESPONSES.parse(json.dumps(body).encode(), LIMITS)


def streamed(batches: Sequence[Sequence[AnswerEvent]], **fields: object) -> list[dict]:
    writer = RESPONSES.make_writer(FACTS, parse(stream=True, **fields))
    frames = [frame for batch in batches for frame in writer.write(0, batch, USAGE)]
    return told(b"".join([*frames, *writer.finish(USAGE)]))


def told(data: bytes) -> list[dict]:
    events = []
    for frame in data.decode().split("\n\n")[:-1]:
        name, _, body = frame.partition("\n")
        event = json.loads(body.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def whole(events: Sequence[AnswerEvent], **fields: object) -> dict:
    writer = RESPONSES.make_writer(FACTS, parse(**fields))
    assert writer.write(0, events, USAGE) == []
    return json.loads(b"".join(writer.finish(USAGE)))


def call(index: int, name: str, *pieces: str, **facts: object) -> list[AnswerEvent]:
    arguments = "".join(pieces)
    ended = {key: facts.pop(key) for key in ("problem", "is_cut") if key in facts}
    return [
        ToolCallBegan(index, f"call_{index}", name, **facts),
        *(ToolArgumentsDelta(index, piece) for piece in pieces),
        ToolCallEnded(index, arguments, **ended),
    ]


FULL: list[AnswerEvent] = [
    ReasoningDelta("think"),
    ReasoningDelta("ing"),
    ContentDelta("Let me "),
    ContentDelta("see “q”"),
    *call(0, "f", '{"a":', ' "x"}'),
    *call(1, "g", "{}", namespace="ns"),
    *call(2, "calc", "1 + ", "1", is_custom=True),
    *call(3, "tool_search", '{"q": ', '"x"}'),
    AnswerFinished(FinishReason.TOOL_CALLS),
]


def test_the_lifecycle_of_every_item() -> None:
    events = streamed([FULL], tools=TOOLS)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added"),
        *("reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.delta"),
        *("custom_tool_call_input.done", "output_item.done"),
        *("output_item.added", "output_item.done"),
        "completed",
    ]


def test_items_say_what_they_are() -> None:
    thought, said, plain, grouped, custom, search = whole(FULL, tools=TOOLS)["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "thinking"}]
    assert "encrypted_content" not in thought
    assert (said["phase"], said["content"][0]["text"]) == ("commentary", "Let me see “q”")
    assert (plain["type"], plain["arguments"]) == ("function_call", '{"a": "x"}')
    assert (grouped["name"], grouped["namespace"]) == ("g", "ns")
    assert (custom["type"], custom["input"]) == ("custom_tool_call", "1 + 1")
    assert (search["type"], search["arguments"]) == ("tool_search_call", {"q": "x"})
    ids = [item["id"] for item in (thought, said, plain, grouped, custom, search)]
    assert ids == ["rs_r1_0", "msg_r1_1", "fc_r1_2", "fc_r1_3", "ctc_r1_4", "tsc_r1_5"]


def test_the_body_is_the_object_of_the_last_event() -> None:
    assert whole(FULL, tools=TOOLS) == streamed([FULL], tools=TOOLS)[-1]["response"]


def test_deltas_add_up_to_what_is_done() -> None:
    events = streamed([FULL], tools=TOOLS)
    for kind, member in (("output_text", "text"), ("reasoning_text", "text")):
        deltas = [e["delta"] for e in events if e["type"] == f"response.{kind}.delta"]
        (done,) = [e for e in events if e["type"] == f"response.{kind}.done"]
        assert "".join(deltas) == done[member]


def test_real_clients_understand_every_event() -> None:
    for event in streamed([FULL], tools=TOOLS):
        assert EVENTS.validate_python(event).type == event["type"]
    response = Response.model_validate(whole(FULL, tools=TOOLS))
    assert response.output_text == "Let me see “q”"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, len(FULL)), max_size=6))
def test_any_split_gives_the_same_stream(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(FULL)]
    batches = [FULL[start:end] for start, end in pairwise(borders)]
    assert streamed(batches, tools=TOOLS) == streamed([FULL], tools=TOOLS)


@st.composite
def answers(draw) -> list[AnswerEvent]:
    """Reasoning, words and calls in any order, as broken models make them."""
    events: list[AnswerEvent] = []
    num_calls = 0
    for kind in draw(st.lists(st.sampled_from("rtfc"), max_size=8)):
        text = draw(st.text(max_size=5))
        if kind == "r":
            events.append(ReasoningDelta(text))
        elif kind == "t":
            events.append(ContentDelta(text))
        else:
            name = "f" if kind == "f" else "calc"
            events += call(num_calls, name, text, is_custom=kind == "c")
            num_calls += 1
    return [*events, AnswerFinished(FinishReason.STOP)]


@settings(max_examples=60, deadline=None)
@given(answers())
def test_every_answer_can_be_sent_back(events) -> None:
    output = whole(events, tools=TOOLS)["output"]
    calls = [item for item in output if item["type"].endswith("_call")]
    results = [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "done"}
        for item in calls
    ]
    parsed = parse(tools=TOOLS, input=[*output, *results, {"role": "user", "content": "go"}])
    made = [made for m in parsed.conversation.messages for made in m.tool_calls]
    assert [c.arguments for c in made] == [
        item.get("arguments", item.get("input")) for item in calls
    ]


@pytest.mark.parametrize(
    ("reason", "told_reason"),
    [(FinishReason.LENGTH, "max_output_tokens"), (FinishReason.CONTENT_FILTER, "content_filter")],
)
def test_a_cut_answer_is_incomplete_and_says_why(reason, told_reason: str) -> None:
    events = streamed([[ContentDelta("half"), AnswerFinished(reason)]])
    assert events[-1]["type"] == "response.incomplete"
    response = events[-1]["response"]
    assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")
    assert response["incomplete_details"] == {"reason": told_reason}


def test_a_cut_call_is_incomplete() -> None:
    cut = call(0, "f", '{"a": ', is_cut=True)
    response = whole([*cut, AnswerFinished(FinishReason.LENGTH)], tools=TOOLS)
    assert response["output"][0] == {
        "type": "function_call",
        "id": "fc_r1_0",
        "status": "incomplete",
        "call_id": "call_0",
        "name": "f",
        "arguments": '{"a": ',
    }


def test_an_empty_answer_has_no_items() -> None:
    response = whole([ReasoningDelta(""), ContentDelta(""), AnswerFinished(FinishReason.STOP)])
    assert (response["status"], response["output"]) == ("completed", [])


def test_usage_in_detail() -> None:
    assert whole([AnswerFinished(FinishReason.STOP)])["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 17,
    }


def test_the_request_is_repeated() -> None:
    asked = {
        "instructions": "I",
        "max_output_tokens": 50,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": None},
        "store": True,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "none",
        "top_logprobs": 2,
        "top_p": 0.25,
        "user": "u",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "max_tool_calls": 2,
        "frequency_penalty": 0.5,
    }
    response = whole([AnswerFinished(FinishReason.STOP)], **asked)
    assert {name: response[name] for name in asked} == asked
    assert (response["id"], response["model"], response["created_at"]) == ("resp_r1", "m", 5)
    assert (response["completed_at"], response["truncation"]) == (9, "disabled")


def test_logprobs_come_with_deltas_and_in_the_item() -> None:
    entry = TokenLogprob(0, -0.5, ((0, -0.5), (1, float("-inf"))))
    events = [
        ContentDelta("", (entry,)),
        ContentDelta("a", (entry,)),
        AnswerFinished(FinishReason.STOP),
    ]
    (delta,) = [e for e in streamed([events], top_logprobs=2) if e["type"].endswith("text.delta")]
    shown = {"token": "a", "logprob": -0.5, "bytes": [97]}
    partial = {"token": "\\xf0\\x9f", "logprob": -9999.0, "bytes": [240, 159]}
    assert delta["logprobs"] == [{**shown, "top_logprobs": [shown, partial]}] * 2
    part = whole(events, top_logprobs=2)["output"][0]["content"][0]
    assert part["logprobs"] == delta["logprobs"]
    assert whole(events)["output"][0]["content"][0]["logprobs"] == []


def test_sealed_reasoning_round_trips() -> None:
    asked = {"include": ["reasoning.encrypted_content"], "store": False}
    answer = [ReasoningDelta("deep"), ContentDelta("A"), AnswerFinished(FinishReason.STOP)]
    thought, said = whole(answer, **asked)["output"]
    hidden = {name: value for name, value in thought.items() if name != "content"}
    messages = parse(input=[hidden, said, {"role": "user", "content": "go"}]).conversation.messages
    assert messages[0].reasoning == "deep"


def test_reasoning_sealed_for_another_tenant_is_refused_by_its_item() -> None:
    foreign = SEALER.seal("x", SealBinding("other", "m"), 5)
    with pytest.raises(RequestRefused) as caught:
        parse(input=[{"type": "reasoning", "summary": [], "encrypted_content": foreign}])
    assert [p.param for p in caught.value.problems] == ["input[0].encrypted_content"]


def test_warnings_of_request_and_answer_are_told() -> None:
    events = [
        OutputWarning("something odd"),
        *call(0, "f", "{", problem="no valid JSON"),
        AnswerFinished(FinishReason.TOOL_CALLS),
    ]
    warnings = whole(events, tools=TOOLS, zebra=1)["warnings"]
    assert warnings == [
        "zebra: unknown field, ignored",
        "something odd",
        "output[0]: no valid JSON",
    ]
    assert "warnings" not in whole([AnswerFinished(FinishReason.STOP)])


def test_a_failed_answer_ends_with_what_there_is_of_it() -> None:
    writer = RESPONSES.make_writer(FACTS, parse(stream=True))
    frames = writer.write(0, [ContentDelta("half")], USAGE)
    last = writer.write_failure(Unavailable("gone"), USAGE)
    *_, failed = told(b"".join([*frames, last]))
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "gone"}
    assert failed["response"]["output"][0]["content"][0]["text"] == "half"
    assert EVENTS.validate_python(failed).type == "response.failed"


def test_an_error_without_a_stream_is_an_error_event() -> None:
    (event,) = told(RESPONSES.render_error(Unavailable("gone")).sse_frames)
    assert (event["type"], event["message"]) == ("error", "gone")


def test_no_part_is_much_larger_than_the_bound() -> None:
    answer = [ContentDelta("x" * 300_000), AnswerFinished(FinishReason.STOP)]
    for stream in (True, False):
        writer = RESPONSES.make_writer(FACTS, parse(stream=stream))
        parts = [*writer.write(0, answer, USAGE), *writer.finish(USAGE)]
        assert max(map(len, parts)) <= MAX_BODY_PART_BYTES
