"""Tools, history, prefixes and thinking of Chat Completions: what they become, what is refused."""

from __future__ import annotations

import json

import pytest
from rorqual_recipe.conversation import (
    ConstraintKind,
    Conversation,
    Effort,
    ImagePart,
    ParsedRequest,
    Role,
    Thinking,
    ToolChoiceMode,
    ToolKind,
)
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.chat.parse import parse_chat_request

LIMITS = ParseLimits(max_choices=8, has_vision=True, vocabulary_size=1000)
USER = {"role": "user", "content": "hi"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": True,
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
PATCH = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a/"}},
    },
}


def parse(**fields: object) -> ParsedRequest:
    body = {"model": "m", "messages": [USER], **fields}
    return parse_chat_request(json.dumps(body).encode(), LIMITS)


def conversation(**fields: object) -> Conversation:
    return parse(**fields).conversation


def refused(**fields: object) -> list[str]:
    with pytest.raises(RequestRefused) as caught:
        parse(**fields)
    return [problem.param for problem in caught.value.problems]


def call(call_id: str, name: str = "weather", arguments: str = "{}") -> dict:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def asks(*calls: dict, **fields: object) -> dict:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **fields}


def result(call_id: str, content: str = "r") -> dict:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_tools_keep_everything_the_client_said() -> None:
    weather, clock, patch = conversation(tools=[WEATHER, CLOCK, PATCH]).tools
    assert weather.parameters == WEATHER["function"]["parameters"]
    assert (weather.strict, weather.description) == (True, "d")
    assert weather.param == "tools[0].function.parameters"
    assert (clock.parameters, clock.strict) == ({}, False)
    assert (patch.kind, patch.grammar) == (ToolKind.CUSTOM, ("lark", "start: /a/"))


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "retrieval"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        (["x"], "tools[0]"),
        ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "x" * 129}}], "tools[0].function.name"),
        ([WEATHER, CLOCK, WEATHER], "tools[2].function.name"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}],
            "tools[0].function.parameters.type",
        ),
        (
            [
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "parameters": {
                            "type": "object",
                            "properties": {"a": {"anyOf": [{"type": "strnig"}]}},
                        },
                    },
                }
            ],
            "tools[0].function.parameters.properties.a.anyOf[0].type",
        ),
        (
            [{"type": "custom", "custom": {"name": "f", "format": {"type": "grammar"}}}],
            "tools[0].custom.format.grammar",
        ),
    ],
)
def test_a_wrong_tool_is_named_by_its_exact_path(tools: list, param: str) -> None:
    assert refused(tools=tools) == [param]


def test_no_tools_is_as_good_as_an_empty_list() -> None:
    """Clients send `tools: []` without thought."""
    assert conversation(tools=[]) == conversation()
    assert conversation(tools=[], tool_choice="auto").tool_choice.mode is ToolChoiceMode.AUTO


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        (None, ToolChoiceMode.AUTO, ()),
        ("auto", ToolChoiceMode.AUTO, ()),
        ("none", ToolChoiceMode.NONE, ()),
        ("required", ToolChoiceMode.REQUIRED, ()),
        (CLOCK, ToolChoiceMode.REQUIRED, ("clock",)),
        ({"type": "custom", "custom": {"name": "patch"}}, ToolChoiceMode.REQUIRED, ("patch",)),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CLOCK]}},
            ToolChoiceMode.AUTO,
            ("clock",),
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [CLOCK, WEATHER]},
            },
            ToolChoiceMode.REQUIRED,
            ("clock", "weather"),
        ),
    ],
)
def test_every_form_of_tool_choice(choice, mode: ToolChoiceMode, names: tuple) -> None:
    found = conversation(tools=[WEATHER, CLOCK, PATCH], tool_choice=choice).tool_choice
    assert (found.mode, found.names, found.parallel) == (mode, names, True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any", "tools": [CLOCK]}, "tool_choice"),
        ({"tool_choice": WEATHER, "tools": [CLOCK]}, "tool_choice.function.name"),
        ({"tool_choice": {"type": "function"}, "tools": [CLOCK]}, "tool_choice.function"),
        ({"tool_choice": {"type": 7}, "tools": [CLOCK]}, "tool_choice.type"),
        ({"tool_choice": {}, "tools": [CLOCK]}, "tool_choice.type"),
        ({"tool_choice": 7, "tools": [CLOCK]}, "tool_choice"),
        (
            {
                "tools": [CLOCK],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [CLOCK, WEATHER]},
                },
            },
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        ({"function_call": {"name": "x"}, "functions": [{"name": "f"}]}, "function_call.name"),
        ({"functions": [{"name": "f"}], "tools": [CLOCK]}, "functions"),
    ],
)
def test_a_wrong_choice_is_named_by_its_exact_path(fields: dict, param: str) -> None:
    assert refused(**fields) == [param]


def test_functions_of_the_old_form_are_tools() -> None:
    parsed = parse(
        functions=[{"name": "f", "parameters": {"type": "object"}}],
        function_call={"name": "f"},
        messages=[
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
            {"role": "function", "name": "f", "content": "42"},
        ],
    )
    found = parsed.conversation
    assert [tool.name for tool in found.tools] == ["f"]
    assert (found.tool_choice.mode, found.tool_choice.names) == (ToolChoiceMode.REQUIRED, ("f",))
    assert not found.tool_choice.parallel
    assert found.messages[1].tool_calls[0].call_id == found.messages[2].tool_call_id
    assert parsed.echo.is_legacy


def test_calls_keep_their_spelling_and_results_any_order() -> None:
    arguments = '{"n": 1.50,"big":12345678901234567890,  "x": "\\u00e9"}'
    messages = conversation(
        parallel_tool_calls=False,
        messages=[
            USER,
            asks(call("a", arguments=arguments), call("b"), reasoning_content="hm"),
            result("b", "second"),
            result("a", "first"),
            {"role": "user", "content": "and?"},
        ],
    ).messages
    assert messages[1].tool_calls[0].arguments == arguments
    assert messages[1].reasoning == "hm"
    assert [m.tool_call_id for m in messages[2:4]] == ["b", "a"]
    custom = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "*** x"}}
    found = conversation(messages=[USER, asks(custom), result("c")]).messages[1].tool_calls[0]
    assert (found.kind, found.arguments) == (ToolKind.CUSTOM, "*** x")


@pytest.mark.parametrize(
    ("messages", "params"),
    [
        ([USER, asks(call("a"), call("b")), result("a")], ["messages[1].tool_calls[1].id"]),
        ([USER, asks(call("a"))], ["messages[1].tool_calls[0].id"]),
        ([USER, asks(call("a")), USER, result("a")], None),
        ([result("a")], ["messages[0].tool_call_id"]),
        (
            [USER, asks(call("a")), result("x")],
            ["messages[2].tool_call_id", "messages[1].tool_calls[0].id"],
        ),
        ([USER, asks(call("a")), result("a"), result("a")], ["messages[3].tool_call_id"]),
        ([USER, asks(call("a"), call("a")), result("a")], ["messages[1].tool_calls[1].id"]),
        ([USER, asks()], ["messages[1].tool_calls"]),
        ([USER, {"role": "assistant"}], ["messages[1].content"]),
        (
            [USER, asks({"id": "a", "function": {"name": "f", "arguments": {}}}), result("a")],
            None,
        ),
        ([USER, {"role": "tool", "content": "r"}], ["messages[1].tool_call_id"]),
        ([{"role": "latest_reminder", "content": [{"type": "text", "text": "x"}]}], None),
    ],
)
def test_calls_and_results_are_paired(messages: list, params: list | None) -> None:
    found = refused(messages=messages)
    assert found
    if params is not None:
        assert found == params


def test_what_says_nothing_is_left_out() -> None:
    empty = {"role": "system", "content": ""}
    assert conversation(messages=[empty, USER]) == conversation()


def test_a_prefix_is_the_last_message_and_goes_with_nothing_else() -> None:
    prefix = {"role": "assistant", "content": "Once", "prefix": True, "reasoning_content": "plan"}
    last = conversation(messages=[USER, prefix]).messages[-1]
    assert (last.is_prefix, last.reasoning) == (True, "plan")
    assert refused(messages=[prefix, USER]) == ["messages[0].prefix"]
    assert refused(messages=[{**USER, "prefix": True}]) == ["messages[0].prefix"]
    assert refused(messages=[USER, prefix], tools=[CLOCK]) == ["messages[1].prefix"]
    json_format = {"type": "json_object"}
    json_user = {"role": "user", "content": "json"}
    params = refused(messages=[json_user, prefix], response_format=json_format)
    assert params == ["messages[1].prefix"]


def test_a_final_message_is_continued_on_request() -> None:
    last = {"role": "assistant", "content": "Once"}
    found = conversation(messages=[USER, last], continue_final_message=True, tools=[CLOCK])
    assert found.messages[-1].is_prefix
    assert not conversation(messages=[USER, last]).messages[-1].is_prefix
    assert refused(continue_final_message=True) == ["continue_final_message"]
    params = refused(messages=[USER, last], continue_final_message=True, add_generation_prompt=True)
    assert params == ["add_generation_prompt"]


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, Thinking()),
        ({"reasoning_effort": "none"}, Thinking(enabled=False)),
        ({"reasoning_effort": "ultra"}, Thinking(effort=Effort.MAX)),
        ({"reasoning_effort": "minimal"}, Thinking(effort=Effort.MINIMAL)),
        ({"reasoning_effort": 42}, Thinking(effort_percent=42)),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "max"}, Thinking(enabled=False)),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "none"}, Thinking(enabled=True)),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 99}, "reasoning_effort": "low"},
            Thinking(True, Effort.LOW, 99),
        ),
        ({"chat_template_kwargs": {"enable_thinking": False}}, Thinking(enabled=False)),
        ({"chat_template_kwargs": {"thinking": True}}, Thinking(enabled=True)),
    ],
)
def test_thinking_in_all_its_spellings(fields: dict, thinking: Thinking) -> None:
    assert conversation(**fields).thinking == thinking


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        (
            {"response_format": {"type": "regex", "regex": "[0-9]+"}},
            ConstraintKind.REGEX,
            "response_format.regex",
        ),
        ({"guided_json": {"type": "object"}}, ConstraintKind.JSON_SCHEMA, "guided_json"),
        ({"guided_json": '{"type": "object"}'}, ConstraintKind.JSON_SCHEMA, "guided_json"),
        ({"guided_grammar": "root ::= a"}, ConstraintKind.EBNF, "guided_grammar"),
        (
            {"structured_outputs": {"choice": ["yes.", "no"]}},
            ConstraintKind.REGEX,
            "structured_outputs.choice",
        ),
    ],
)
def test_shapes_in_all_their_spellings(fields: dict, kind: ConstraintKind, param: str) -> None:
    shape = conversation(**fields).response_format
    assert shape is not None
    assert (shape.kind, shape.param) == (kind, param)


def test_a_choice_of_texts_matches_these_texts_only() -> None:
    import re

    shape = conversation(guided_choice=["a.b", "(c)", "d|e"]).response_format
    assert shape is not None
    assert all(re.fullmatch(shape.source, text) for text in ("a.b", "(c)", "d|e"))
    assert not any(re.fullmatch(shape.source, text) for text in ("axb", "c", "d", "e"))


def test_shapes_that_contradict_or_can_not_be_are_refused() -> None:
    regex = {"type": "regex", "regex": "a"}
    assert refused(response_format=regex, guided_regex="b") == ["guided_regex"]
    schema = {"type": "object", "properties": {"a": {"type": "int"}}}
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert refused(response_format=shape) == [
        "response_format.json_schema.schema.properties.a.type"
    ]
    assert refused(response_format={"type": "json_object"}) == ["response_format"]
    assert refused(guided_json="{") == ["guided_json"]


def test_biases_and_penalties_travel() -> None:
    sampling = parse(
        logit_bias={"5": -100, "999": 1.5},
        frequency_penalty=1,
        presence_penalty=-2,
        repetition_penalty=1.1,
        min_tokens=3,
        max_completion_tokens=7,
        max_tokens=8,
    ).sampling
    assert sampling.logit_bias == ((5, -100), (999, 1.5))
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (1, -2)
    assert (sampling.repetition_penalty, sampling.min_tokens) == (1.1, 3)
    assert (sampling.max_tokens, sampling.max_tokens_param) == (7, "max_completion_tokens")
    assert refused(logit_bias={"1000": 1}) == ["logit_bias.1000"]


PNG = "data:image/png;base64,iVBORw0KGgo="


def test_images_and_files_become_parts() -> None:
    content = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
        {"type": "file", "file": {"file_data": "data:text/plain;base64,aGk=", "filename": "n.txt"}},
        {"type": "file", "file_data": PNG},
    ]
    _, by_url, inline, document, flat = (
        conversation(messages=[{"role": "user", "content": content}]).messages[0].parts
    )
    assert (by_url.url, by_url.detail) == ("https://example.com/a.png", "high")
    assert (inline.media_type, inline.detail) == ("image/png", "low")
    assert document.text == "n.txt\n\nhi"
    assert isinstance(flat, ImagePart)


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": {"url": "ftp://x"}}, "image_url.url"),
        ({"type": "image_url", "image_url": "https://x"}, "image_url"),
        ({"type": "image_url", "image_url": {"url": PNG, "detail": "best"}}, "image_url.detail"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,@"}}, "image_url.url"),
        ({"type": "file", "file": {"file_id": "f"}}, "file.file_id"),
        ({"type": "file", "file_id": "f", "file_data": "d"}, "file_id"),
        ({"type": "file"}, "file"),
        ({"type": "file", "file": {}}, "file.file_data"),
        ({"type": "input_audio", "input_audio": {}}, None),
    ],
)
def test_a_wrong_part_is_named_by_its_exact_path(part: dict, param: str | None) -> None:
    suffix = f".{param}" if param else ""
    message = {"role": "user", "content": [part]}
    assert refused(messages=[message]) == [f"messages[0].content[0]{suffix}"]


def test_an_assistant_holds_no_images() -> None:
    part = {"type": "image_url", "image_url": {"url": PNG}}
    message = {"role": "assistant", "content": [part]}
    assert refused(messages=[USER, message]) == ["messages[1].content[0]"]


def test_roles_of_every_kind_are_known() -> None:
    roles = ["system", "developer", "user", "assistant", "latest_reminder"]
    messages = conversation(messages=[{"role": r, "content": "x"} for r in roles]).messages
    assert [m.role for m in messages] == [Role(role) for role in roles]
