"""Tool calls in every format, well-formed and not: always valid arguments, never lost text."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.conversation import Tool, ToolKind
from rorqual_recipe.encodings.base import AnswerStage
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.calls import UnknownToolFormat, call_format
from rorqual_recipe.output.events import FinishReason, ToolCallBegan
from rorqual_recipe.output.plan import AnswerPlan

from tests.unit.recipe.answers import (
    VOCABULARY,
    block,
    call,
    parameter,
    portions,
    read,
    said,
    token_ids,
)

DSML = AnswerPlan(tool_format="dsml-v4.1", reasoning_marks=("<think>", "</think>"))
M = "｜DSML｜"
NO_NAME = f"<{M} parameter>x</{M} parameter>"
X = f'<{M} parameter name="a" string="true">x</{M} parameter>'


def one(arguments: str, problem: str | None = None) -> list:
    return [["f", arguments, problem, False]]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (block(call("f", X)), one('{"a": "x"}')),
        (block(call("f")), one("{}")),
        (block(call("f", parameter("a", "")), call("f")), [*one('{"a": ""}'), *one("{}")]),
        (block(call("f", parameter("n", "1.50", is_text=False))), one('{"n": 1.50}')),
        (block(call("f", parameter("n", "9" * 30, is_text=False))), one('{"n": %s}' % ("9" * 30))),
        (block(call("f", parameter("o", '{"k" : [1]}', is_text=False))), one('{"o": {"k" : [1]}}')),
        (block(call("f", parameter('x"y', "v"))), one('{"x\\"y": "v"}')),
        (block(call("f", parameter("a>b", "v"))), one('{"a>b": "v"}')),
        (block(call("f", parameter("a", '\t"\\\n文'))), one('{"a": "\\t\\"\\\\\\n文"}')),
        (f'<{M}tool_calls>\n<{M}invoke name="f">\n</{M}invoke>\n</{M}tool_calls>', one("{}")),
        (block(f"<{M} invoke name = 'f' >\n</{M} invoke >\n"), one("{}")),
        (block(call("f", X.replace('"a"', "'a'"))), one('{"a": "x"}')),
        (block(call("f", X.replace('name="a" string="true"', 'string="true"  name="a"'))), None),
        (block(call("f", X.replace("=", " = "))), one('{"a": "x"}')),
        (block(call("f", X.replace(' string="true"', ""))), one('{"a": "x"}')),
        (block(call("f", X.replace(' string="true">x', ">[1]"))), one('{"a": [1]}')),
        (call("f", X), one('{"a": "x"}')),
        (block(call("f", X).replace(f"</{M} invoke>", ""), call("f")), None),
        (block(call("f", X)).replace(f"\n</{M} invoke>", ""), one('{"a": "x"}')),
    ],
)
def test_a_dsml_call_is_read_however_it_is_spelled(text, calls) -> None:
    facts = said(read(text, DSML))
    expected = one('{"a": "x"}') if calls is None else calls
    assert facts["calls"][: len(expected)] == expected
    assert facts["content"] == ""
    assert facts["finish"] == FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("True", True),
        ("None", None),
        ("", ""),
        ("{'a': 1}", "{'a': 1}"),
        ("NaN", "NaN"),
        ("[1,", "[1,"),
        ("[" * 3000, "[" * 3000),
    ],
)
def test_a_value_that_is_no_json_stays_whole_and_is_reported(value, shown) -> None:
    ((_, arguments, problem, is_cut),) = said(
        read(block(call("f", parameter("a", value, is_text=False), X.replace('"a"', '"b"'))), DSML)
    )["calls"]
    assert json.loads(arguments) == {"a": shown, "b": "x"}
    assert "`a`" in problem and not is_cut


@pytest.mark.parametrize(
    "value",
    [
        f"x </{M} y",
        f"x </{M} parameter> y",
        f"x </{M} invoke> y",
        f"see </{M} parameter>\n and </{M} calls>\nthe end",
        "</parameter></invoke>",
    ],
)
def test_a_closing_tag_inside_a_string_belongs_to_it(value) -> None:
    facts = said(read(block(call("f", parameter("a", value), parameter("b", "2"))), DSML))
    assert json.loads(facts["calls"][0][1]) == {"a": value, "b": "2"}
    assert (len(facts["calls"]), facts["content"]) == (1, "")


def test_the_first_value_of_a_repeated_parameter_counts_and_is_reported() -> None:
    parameters = X, parameter("a", "y"), parameter("a", "3", is_text=False), parameter("b", "z")
    ((_, arguments, problem, _),) = said(read(block(call("f", *parameters)), DSML))["calls"]
    assert arguments == '{"a": "x", "b": "z"}'
    assert "`a` is there twice" in problem


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (f"a <{M} zzz> b", None),
        (f"a <{M}", None),
        (f"go\n\n<{M} cal", None),
        (f"a\n\n<{M} calls>\n</{M} calls> b", None),
        (f"a\n<{M} calls>\nno call\n", None),
        (f"a <{M} invoke>x", None),
        (f"a </{M} calls> b", None),
        (f'a <{M} parameter name="x" string="true">y</{M} parameter>', None),
        ("a" + block("junk <b>\n", call("f")), "ajunk <b>"),
        ("a" + block(call("f", "junk\n"), "more\n"), "ajunk\nmore"),
        ("a" + block(call("f")) + "\n\nbehind", "a\n\nbehind"),
        (block(call("f")) + "\n", ""),
        (
            "a" + block(call("f", f"<{M} parameter>x</{M} parameter>")),
            f"a<{M} parameter>x</{M} parameter>",
        ),
    ],
)
def test_what_is_no_call_stays_content_with_a_warning(text, content) -> None:
    facts = said(read(text, DSML))
    assert facts["content"] == (text if content is None else content)
    num_calls = text.count("</｜DSML｜ invoke>")
    assert len(facts["calls"]) == num_calls
    is_clean = content in ("", "a\n\nbehind") or text.startswith("a </")
    assert bool(facts["warnings"]) is not is_clean
    assert facts["finish"] == ("tool_calls" if num_calls else "stop")


def test_a_block_that_the_prompt_opened_is_read_from_its_inside() -> None:
    plan = replace(DSML, starts_in_tool_calls=True)
    facts = said(read(call("f", X) + f"</{M} calls>", plan))
    assert (facts["calls"], facts["content"]) == (one('{"a": "x"}'), "")
    assert said(read("no call at all", plan))["content"] == "no call at all"


def test_a_call_inside_reasoning_ends_and_reasoning_goes_on() -> None:
    plan = replace(DSML, stage=AnswerStage.REASONING)
    facts = said(read(f"hm\n{block(call('f'))} more</think>done", plan))
    assert (facts["reasoning"], facts["content"]) == ("hm more", "done")
    assert len(facts["calls"]) == 1


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP])
def test_an_answer_that_ends_inside_a_value_leaves_it_open(reason) -> None:
    text = block(call("f", parameter("a", "hello")))
    facts = said(read(text[: text.index("llo")], DSML, reason))
    ((_, arguments, problem, is_cut),) = facts["calls"]
    assert arguments == '{"a": "he'
    assert is_cut and "`a`" in problem
    assert facts["finish"] == ("length" if reason is FinishReason.LENGTH else "tool_calls")


WEATHER = Tool(
    "weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/days"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"days": {"type": "integer", "minimum": 1}},
    },
)
PATCH = Tool("apply_patch", kind=ToolKind.CUSTOM)
INNER = Tool("g", namespace="ns")
DECLARED = {"weather": WEATHER, "apply_patch": PATCH, "ns::g": INNER}


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ((parameter("city", "Bonn"), parameter("days", "3", is_text=False)), None),
        ((parameter("days", "3", is_text=False),), "`city` is missing"),
        ((parameter("city", "Bonn"), parameter("days", "3")), "`days` is not of type integer"),
        ((parameter("city", "Bonn"), parameter("days", "0", is_text=False)), "out of range"),
        ((parameter("city", "Bonn"), parameter("x", "1")), "`x` is not declared"),
        ((parameter("city", "7", is_text=False),), "`city` is not of type string"),
    ],
)
def test_arguments_are_checked_against_the_declared_schema(parameters, problem) -> None:
    plan = replace(DSML, tools=DECLARED)
    ((_, arguments, found, _),) = said(read(block(call("weather", *parameters)), plan))["calls"]
    json.loads(arguments)
    assert found is None if problem is None else problem in found


def test_an_unmarked_value_is_read_as_its_tool_declares_it() -> None:
    unmarked = f'<{M} parameter name="city">123</{M} parameter>'
    facts = said(read(block(call("weather", unmarked)), replace(DSML, tools=DECLARED)))
    assert facts["calls"] == [["weather", '{"city": "123"}', None, False]]


def test_a_call_of_an_undeclared_tool_stays_content_whole() -> None:
    plan = replace(DSML, tools=DECLARED)
    text = "a\n\n" + block(call("nope", X))
    facts = said(read(text, plan))
    assert (facts["content"], facts["calls"], facts["finish"]) == (text, [], "stop")
    assert "nope" in facts["warnings"][0]
    mixed = said(read(block(call("weather"), call("nope", X), call("weather")), plan))
    assert [name for name, *_ in mixed["calls"]] == ["weather", "weather"]
    assert mixed["content"].strip() == call("nope", X).strip()


def test_calls_carry_namespace_and_kind_of_their_tool() -> None:
    text = block(call("ns::g"), call("apply_patch", parameter("input", '*** "x"\n+é')))
    events = read(text, replace(DSML, tools=DECLARED))
    began = [event for event in events if isinstance(event, ToolCallBegan)]
    assert [(e.name, e.namespace, e.is_custom) for e in began] == [
        ("g", "ns", False),
        ("apply_patch", "", True),
    ]
    assert said(events)["calls"][1] == ["apply_patch", '*** "x"\n+é', None, False]


HERMES = AnswerPlan(tool_format="hermes")
LLAMA = AnswerPlan(tool_format="llama3-json")
MISTRAL = AnswerPlan(tool_format="mistral")
BODY = '{"name": "f", "arguments": {"a": "</tool_call> }", "n": 1.50}}'
ARGUMENTS = '{"a": "</tool_call> }", "n": 1.50}'


@pytest.mark.parametrize(
    ("plan", "text", "content", "num_calls"),
    [
        (HERMES, f"Hi\n<tool_call>\n{BODY}\n</tool_call>", "Hi", 1),
        (HERMES, f"<tool_call>{BODY}</tool_call>\n<tool_call>\n{BODY}\n</tool_call>", "", 2),
        (HERMES, f"<tool_call>{BODY}\n<tool_call>{BODY}</tool_call> bye", " bye", 2),
        (HERMES, f"<tool_call>{BODY[:-1]}</tool_call>", "", 1),
        (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", 1),
        (HERMES, "<tool_call>no json</tool_call>x", None, 0),
        (HERMES, '<tool_call>{"city": "x"}</tool_call>', None, 0),
        (LLAMA, BODY.replace("arguments", "parameters"), "", 1),
        (LLAMA, f"<|python_tag|>{BODY}; {BODY}", "", 2),
        (LLAMA, '{"type": "function", "name": "f", "parameters": {}}', "", 1),
        (LLAMA, '{"answer": [1, 2]} and text', None, 0),
        (LLAMA, "plain text {" + BODY, None, 0),
        (MISTRAL, f"Hi[TOOL_CALLS] [{BODY}, {BODY}]", "Hi", 2),
        (MISTRAL, f"[TOOL_CALLS]f[ARGS]{ARGUMENTS}", "", 1),
        (MISTRAL, f"[TOOL_CALLS]f{ARGUMENTS}[TOOL_CALLS]f[CALL_ID]x1[ARGS]{ARGUMENTS}", "", 2),
        (MISTRAL, "[TOOL_CALLS] nothing here", None, 0),
    ],
)
def test_json_formats_read_calls_and_leave_the_rest(plan, text, content, num_calls) -> None:
    facts = said(read(text, plan))
    assert facts["content"] == (text if content is None else content)
    assert [name for name, *_ in facts["calls"]] == ["f"] * num_calls
    for _, arguments, problem, is_cut in facts["calls"]:
        assert isinstance(json.loads(arguments), dict)
        assert (problem, is_cut) == (None, False)
    assert facts["finish"] == ("tool_calls" if num_calls else "stop")


PIECES = (
    *("Hi", "\n", "<tool_call>", "</tool_call>", BODY, BODY[:20], BODY[20:], "[TOOL_CALLS]"),
    *("f", "[ARGS]", ARGUMENTS, "[", "]", ",", "; ", "<|python_tag|>", "x", "{", "}"),
)


@given(
    st.sampled_from([HERMES, LLAMA, MISTRAL]),
    st.lists(
        st.sampled_from(PIECES),
        max_size=8,
    ),
    st.booleans(),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_any_split_of_any_json_markup_says_the_same(plan, pieces, is_cut, draw) -> None:
    text = "".join(pieces)
    reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
    expected = said(read(text, plan, reason))
    cut = AnswerReader(VOCABULARY, plan)
    events = [event for part in portions(draw, token_ids(text)) for event in cut.feed(part)]
    assert said(events + cut.finish(reason)) == expected
    as_text = AnswerReader(VOCABULARY, plan)
    events = [event for part in portions(draw, text) for event in as_text.feed_text(part, 1)]
    assert said(events + as_text.finish(reason)) == expected
    calls = expected["calls"]
    assert all(is_cut or problem or json.loads(a) is not None for _, a, problem, is_cut in calls)
    if "TOOL" not in text and "tool" not in text and not calls:
        assert expected["content"] == text.lstrip("\n") or is_cut


def test_an_unknown_format_is_refused_by_name() -> None:
    assert call_format("none") is None
    with pytest.raises(UnknownToolFormat, match="hermes"):
        call_format("xml")
