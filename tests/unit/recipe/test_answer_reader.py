"""Any portions of the same tokens give the same events, and nothing leaks or is lost."""

from __future__ import annotations

import json
from dataclasses import astuple, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.conversation import Conversation, ParsedRequest, SamplingOptions, Tool
from rorqual_recipe.encode import encode_request
from rorqual_recipe.encodings.base import AnswerStage
from rorqual_recipe.model import ServedModel
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.events import (
    ContentDelta,
    FinishReason,
    ReasoningDelta,
    TokenLogprob,
    ToolArgumentsDelta,
    ToolCallBegan,
)
from rorqual_recipe.output.plan import AnswerPlan, plan_answer
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.tokens.vocabulary import Vocabulary

from tests.unit.recipe.answers import (
    MARKS,
    VOCABULARY,
    block,
    call,
    parameter,
    portions,
    read,
    said,
    token_ids,
)
from tests.vectors.stream_answers import plan_of
from tests.vectors.stream_texts import StreamTexts

THINKS = AnswerPlan(
    stage=AnswerStage.REASONING, reasoning_marks=("<think>", "</think>"), tool_format="dsml-v4.1"
)
PLAIN = replace(THINKS, stage=AnswerStage.CONTENT)
CALL = block(call("f"))


def drawn(seed: int) -> tuple[str, AnswerPlan, FinishReason]:
    """An answer, its plan and its end, for better or worse formed."""
    texts = StreamTexts(seed)
    parsing = texts.parsing()
    reason = texts.random.choice([FinishReason.STOP, FinishReason.LENGTH])
    return texts.text(parsing), plan_of(parsing), reason


def ends_inside_a_mark(text: str) -> bool:
    """True for a cut that no token can make."""
    return any(text.endswith(mark[:size]) for mark in MARKS for size in range(1, len(mark)))


@given(st.integers(0, 10**9), st.data())
@settings(max_examples=150, deadline=None)
def test_any_split_of_the_tokens_gives_the_same_events(seed, draw) -> None:
    text, plan, reason = drawn(seed)
    ids = token_ids(text)
    one_by_one = AnswerReader(VOCABULARY, plan)
    after = [one_by_one.feed([token_id]) for token_id in ids]
    last = one_by_one.finish(reason)
    other = AnswerReader(VOCABULARY, plan)
    num_fed = 0
    events = []
    for portion in portions(draw, ids):
        events += other.feed(portion)
        num_fed += len(portion)
        assert events == [event for part in after[:num_fed] for event in part]
    assert events + other.finish(reason) == [event for part in [*after, last] for event in part]
    assert other.num_tokens == one_by_one.num_tokens
    assert other.num_reasoning_tokens == one_by_one.num_reasoning_tokens


FRAGMENTS = st.lists(
    st.sampled_from(
        (*MARKS, CALL, "</think>", "x", "\n", '"', ">", '{"name": "', '", "arguments": {')
    ),
    max_size=6,
).map("".join)


@given(FRAGMENTS, FRAGMENTS, FRAGMENTS, st.sampled_from(("hermes", "llama3-json", "dsml-v4.1")))
@settings(max_examples=200, deadline=None)
def test_marks_are_shown_by_their_spelling_wherever_they_stand(name, key, value, form) -> None:
    """In names, values, warnings and problems too; a lone surrogate could not be sent."""
    dsml = block(call(f"f{name}", parameter(f"k{key}", value, is_text=False), parameter("s", key)))
    called = f'<tool_call>{{"name": "f{name}", "arguments": {{"k{key}": "{value}"}}}}</tool_call>'
    text = f"{name}</think>{dsml if form.startswith('dsml') else called}{value}"
    events = read(text, replace(THINKS, tool_format=form))
    assert "\\ud8" not in repr(events)


STRICT = {"f": Tool("f", parameters={"properties": {}, "additionalProperties": False})}


@pytest.mark.parametrize(
    "called",
    [
        r'{"name": "g\udfff", "arguments": {}}',
        r'{"name": "f", "arguments": {"\udfff": 1}}',
        r'{"arguments": {"a": "\udfff"}, "name": "f"}',
        r'{"name": "f", "arguments": "x\udfff"}',
    ],
)
def test_an_escape_of_half_a_character_can_be_sent(called) -> None:
    plan = replace(THINKS, tool_format="hermes", tools=STRICT)
    events = read(f"</think><tool_call>{called}</tool_call>", plan)
    shown = "".join(str(value) for event in events for value in astuple(event))
    assert shown.encode().decode() == shown


@given(st.integers(0, 10**9), st.data())
@settings(max_examples=150, deadline=None)
def test_any_split_of_the_text_says_the_same(seed, draw) -> None:
    text, plan, reason = drawn(seed)
    whole = AnswerReader(VOCABULARY, plan)
    expected = said([*whole.feed_text(text, 1), *whole.finish(reason)])
    cut = AnswerReader(VOCABULARY, plan)
    events = [event for part in portions(draw, text) for event in cut.feed_text(part, 1)]
    assert said(events + cut.finish(reason)) == expected
    if not ends_inside_a_mark(text):
        assert expected == said(read(text, plan, reason))


@pytest.mark.parametrize("num_tokens", range(0, 190, 3))
def test_a_cut_answer_shows_no_part_of_a_well_formed_call(num_tokens) -> None:
    value = '</b> 文 "q"'
    parameters = parameter("a", value), parameter("b", "[1, 2]", is_text=False)
    text = "Hi\n\n" + block(call("f", *parameters))
    ids = token_ids(text)[:num_tokens]
    reader = AnswerReader(VOCABULARY, PLAIN)
    facts = said([*reader.feed(ids), *reader.finish(FinishReason.LENGTH)])
    assert facts["content"].rstrip("\n<") in "Hi"
    assert facts["finish"] == FinishReason.LENGTH
    for name, arguments, problem, is_cut in facts["calls"]:
        assert name == "f"
        whole = json.dumps({"a": value, "b": [1, 2]}, ensure_ascii=False)
        assert (is_cut and problem and whole.startswith(arguments)) or arguments == whole


@given(st.text(alphabet="ab<>/\n｜ 文`{", max_size=40), st.sampled_from([PLAIN, THINKS]))
@settings(max_examples=150, deadline=None)
def test_text_without_marks_is_shown_whole(text, plan) -> None:
    facts = said(read(text, plan))
    assert facts["content" if plan is PLAIN else "reasoning"] == text.lstrip("\n")
    assert facts["calls"] == [] and facts["warnings"] == []


def test_marks_are_tokens_and_their_spellings_are_text() -> None:
    spelled = said(read("r</think>x" + CALL, THINKS, spelled=True))
    assert spelled["reasoning"] == "r</think>x" + CALL
    facts = said(read("r</think>x" + CALL, THINKS))
    assert (facts["reasoning"], facts["content"]) == ("r", "x")
    assert facts["calls"] == [["f", "{}", None, False]]


def test_marks_that_are_no_tokens_are_found_in_the_text() -> None:
    vocabulary = Vocabulary(tuple(bytes([b]) for b in range(256)), {}, False)
    reader = AnswerReader(vocabulary, THINKS)
    facts = said(
        [*reader.feed((f"r</think>x\n{CALL}").encode()), *reader.finish(FinishReason.STOP)]
    )
    assert (facts["reasoning"], facts["content"], len(facts["calls"])) == ("r", "x", 1)


def test_special_tokens_and_unknown_ids_are_no_text_but_count() -> None:
    reader = AnswerReader(VOCABULARY, PLAIN)
    events = reader.feed([*token_ids("a<|end|>b"), 10**6])
    assert events == [ContentDelta("a"), ContentDelta("b")]
    assert reader.num_tokens == 4


@pytest.mark.parametrize(
    ("text", "plan", "reasoning", "content"),
    [
        ("\n\nr\n\n</think>\n\nc\n", THINKS, "r", "c\n"),
        ("\nr</think>\nc", replace(THINKS, stage=AnswerStage.REASONING_CONTINUATION), "\nr", "c"),
        ("\nc", replace(PLAIN, stage=AnswerStage.CONTENT_CONTINUATION), "", "\nc"),
        ("<think>\nr\n</think>\n\nc", THINKS, "r", "c"),
        ("<think>\nr\n</think>\n\nc", PLAIN, "r", "c"),
        ("c<think>d</think>e", PLAIN, "", "c<think>d</think>e"),
        ("a</think>b</think>c", THINKS, "a", "b</think>c"),
        ("r</thi", THINKS, "r</thi", ""),
        ("</think>", THINKS, "", ""),
    ],
)
def test_reasoning_ends_at_its_mark_and_only_there(text, plan, reasoning, content) -> None:
    facts = said(read(text, plan))
    assert (facts["reasoning"], facts["content"]) == (reasoning, content)


def test_a_character_cut_off_is_shown_and_counted() -> None:
    reader = AnswerReader(VOCABULARY, PLAIN)
    events = reader.feed([ord("a"), 0xE4, 0xBD])
    events += reader.finish(FinishReason.LENGTH)
    assert said(events)["content"] == "a\ufffd"
    assert reader.num_tokens == 3


def test_reasoning_tokens_are_those_that_made_reasoning() -> None:
    reader = AnswerReader(VOCABULARY, THINKS)
    reader.feed(token_ids("\nabc\n</think>xyz"))
    assert (reader.num_tokens, reader.num_reasoning_tokens) == (9, 3)


@pytest.mark.parametrize(
    ("text", "stops", "content", "stop", "num_tokens"),
    [
        ("abXcd", ("X",), "ab", "X", 3),
        ("a</think>b", ("a",), "", "a", 1),
        ("endSTO", ("STOP",), "endSTO", None, 6),
        ("xaabABCD", ("ab", "aab"), "xa", "ab", 4),
        ("a\n\nb", ("\n\n",), "a", "\n\n", 2),
        ("a\n\n\n\n\n" + CALL, ("STOP", "\n\n"), "a", "\n\n", 2),
        ("STOP\n\n" + CALL + "Z", ("Z",), "STOP", "Z", None),
    ],
)
def test_stop_strings_end_the_content(text, stops, content, stop, num_tokens) -> None:
    reader = AnswerReader(VOCABULARY, replace(PLAIN, stops=stops))
    facts = said([*reader.feed(token_ids(text)), *reader.finish(FinishReason.STOP)])
    assert (facts["content"], facts["stop"]) == (content, stop)
    assert num_tokens in (None, reader.num_tokens)
    assert facts["finish"] == ("tool_calls" if facts["calls"] else "stop")


def test_stop_strings_are_not_looked_for_in_reasoning_and_arguments() -> None:
    text = CALL.replace(
        "\n</", '\n<｜DSML｜ parameter name="a" string="true">STOP</｜DSML｜ parameter>\n</', 1
    )
    facts = said(read(f"STOP</think>go{text}", replace(THINKS, stops=("STOP",))))
    assert facts["reasoning"] == "STOP"
    assert facts["calls"][0][1] == '{"a": "STOP"}'
    assert facts["finish"] == FinishReason.TOOL_CALLS


def test_logprobs_go_with_the_text_of_their_token() -> None:
    plan = replace(THINKS, logprobs=True, stops=("bX",))
    reader = AnswerReader(VOCABULARY, plan)
    ids = token_ids("\nr\n</think>a\n文bX")
    events = reader.feed(ids, [TokenLogprob(token_id, -1.0) for token_id in ids])
    shown = [
        (type(event), event.text, [entry.token_id for entry in event.logprobs])
        for event in events
        if isinstance(event, ContentDelta | ReasoningDelta)
    ]
    assert shown == [
        (ReasoningDelta, "r", [ord("r")]),
        (ContentDelta, "a", [ord("a")]),
        (ContentDelta, "\n文", [ord("\n"), *"文".encode()]),
    ]


def test_call_ids_are_the_same_in_every_replay_and_differ_otherwise() -> None:
    def ids(seed: str) -> list[str]:
        events = read(CALL + "\n" + CALL, replace(PLAIN, call_id_seed=seed))
        return [event.call_id for event in events if isinstance(event, ToolCallBegan)]

    assert ids("r/0") == ids("r/0")
    assert len({*ids("r/0"), *ids("r/1"), *ids("s/0")}) == 6
    assert all(call_id.startswith("call_") and len(call_id) == 29 for call_id in ids("r/0"))


def test_plain_tokens_after_marks_cost_no_state() -> None:
    reader = AnswerReader(VOCABULARY, THINKS)
    reader.feed(token_ids("r</think>\n\na"))
    assert reader.feed(token_ids("Hello")) == [ContentDelta("Hello")]
    assert reader.feed(token_ids("Hello"))[0] is reader.feed(token_ids("Hello"))[0]


def test_arguments_of_one_token_are_one_delta() -> None:
    text = CALL.replace(
        "\n</", '\n<｜DSML｜ parameter name="a" string="true">Hello</｜DSML｜ parameter>\n</', 1
    )
    reader = AnswerReader(VOCABULARY, PLAIN)
    for token_id in token_ids(text):
        events = reader.feed([token_id])
        assert sum(isinstance(event, ToolArgumentsDelta) for event in events) <= 1


def test_a_request_without_tools_reads_no_calls() -> None:
    parsed = ParsedRequest("m", Conversation(()), SamplingOptions())
    assert not parsed.conversation.tools
    facts = said(read("hi " + CALL, replace(PLAIN, tool_format="none")))
    assert (facts["content"], facts["calls"]) == ("hi " + CALL, [])


def test_a_raw_prompt_is_continued_line_breaks_and_all(model: ServedModel) -> None:
    body = b'{"model": "tiny-chat", "prompt": "def f():"}'
    limits = ParseLimits(max_choices=1, has_vision=False)
    adapter = PROTOCOLS["completions"]
    encoded = encode_request(body, adapter, model, default_max_tokens=9, limits=limits)
    plan = plan_answer(encoded.parsed, encoded.rendered, is_enforced=False, call_id_seed="r/0")
    assert said(read("\n    return 1\n", plan))["content"] == "\n    return 1\n"
