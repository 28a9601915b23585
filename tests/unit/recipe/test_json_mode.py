"""JSON mode: the content is the JSON, whatever the model writes around it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.events import FinishReason
from rorqual_recipe.output.plan import AnswerPlan

from tests.unit.recipe.answers import VOCABULARY, block, call, portions, read, said, token_ids

JSON = AnswerPlan(json_mode=True, tool_format="dsml-v4.1")
OUTSIDE = "text around the JSON was left out"


@pytest.mark.parametrize(
    ("text", "content", "warnings"),
    [
        ('{"a": 1}', '{"a": 1}', []),
        ("{}", "{}", []),
        ('```json\n{"a": "```"}\n```', '{"a": "```"}', []),
        ('```JSON\n{"a": 1}\n```\nbye', '{"a": 1}', [OUTSIDE]),
        ('Here {it} is:\n{"a": {"b": "}"}} tail {"c": 1}', '{"a": {"b": "}"}}', [OUTSIDE]),
        ("See [1] and [x].\n[1, 2]", "[1, 2]", [OUTSIDE]),
        ("[x] is no list", "[x] is no list", ["the answer holds no JSON"]),
        ('"just text"', '"just text"', []),
        ("```\n42\n```", "42", []),
        ("I cannot.", "I cannot.", ["the answer holds no JSON"]),
        ('{"a": tru}', '{"a": tru}', ["the answer is not valid JSON"]),
        ("\n\n", "", []),
    ],
)
def test_the_json_is_shown_and_what_is_around_it_left_out(text, content, warnings) -> None:
    facts = said(read(text, JSON))
    assert (facts["content"], facts["warnings"]) == (content, warnings)


def test_json_streams_once_its_first_name_is_known() -> None:
    reader = AnswerReader(VOCABULARY, JSON)
    assert reader.feed(token_ids('Sure: {"a"')) == []
    assert said(reader.feed(token_ids(": ")))["content"] == '{"a": '
    assert said(reader.feed(token_ids("12")))["content"] == "12"


def test_words_before_a_call_need_be_no_json() -> None:
    facts = said(read("Let me look." + block(call("f")), JSON))
    assert (facts["content"], facts["warnings"], len(facts["calls"])) == ("Let me look.", [], 1)


def test_json_that_the_limit_cuts_is_passed_on_without_complaint() -> None:
    facts = said(read('{"a": [1, ', JSON, FinishReason.LENGTH))
    assert (facts["content"], facts["warnings"]) == ('{"a": [1, ', [])


@given(
    st.recursive(st.integers() | st.text('a{}[]"\\`\n文', max_size=5), st.lists, max_leaves=6),
    st.sampled_from(["", "Here {you} go [1]:\n", "```json\n", "\n"]),
    st.sampled_from(["", "\n```", " ok", "{"]),
    st.data(),
)
@settings(max_examples=100, deadline=None)
def test_any_split_shows_the_same_json(value, before, after, draw) -> None:
    text = before + json.dumps({"k": value}, ensure_ascii=False) + after
    reader = AnswerReader(VOCABULARY, replace(JSON, tool_format="none"))
    events = [event for part in portions(draw, token_ids(text)) for event in reader.feed(part)]
    assert json.loads(said(events + reader.finish(FinishReason.STOP))["content"]) == {"k": value}
