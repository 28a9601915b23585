"""Responses bodies: what is accepted, what it becomes, and what is said about the rest."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.conversation import (
    ConstraintKind,
    Effort,
    ImagePart,
    Message,
    ParsedRequest,
    Role,
    TextPart,
    ToolCall,
    ToolChoiceMode,
    ToolKind,
)
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.responses import Responses
from rorqual_recipe.protocols.responses.items import ITEM_TYPES, LEFT_OUT, REFUSED

from tests.support.pdf import make_pdf

RESPONSES = Responses()
LIMITS = ParseLimits(max_choices=8, has_vision=True)
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1.50}'}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "done"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
CUSTOM = {"type": "custom", "name": "calc"}
NAMESPACE = {"type": "namespace", "name": "ns", "description": "group", "tools": [FUNCTION]}
PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()


def parse(limits: ParseLimits = LIMITS, **fields: object) -> ParsedRequest:
    body = {"model": "m", "input": "hi", **fields}
    return RESPONSES.parse(json.dumps(body).encode(), limits)


def refusal(**fields: object) -> dict:
    with pytest.raises(RequestRefused) as caught:
        parse(**fields)
    rendered = RESPONSES.render_refusal(caught.value.problems)
    params = [problem.param for problem in caught.value.problems]
    error = json.loads(rendered.body_json)["error"]
    return {"status": rendered.http_status, "params": params, **error}


def said(message: Message) -> list[str]:
    return [part.text for part in message.parts if isinstance(part, TextPart)]


def user(content: object) -> dict:
    return {"role": "user", "content": content}


def file_part(data: bytes, name: str | None = None, head: str = "") -> dict:
    part = {"type": "input_file", "file_data": head + base64.b64encode(data).decode()}
    return part if name is None else {**part, "filename": name}


SCHEMA_PATH = "text.format.schema"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 5}, "model"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{}]}, "input[0].type"),
        ({"input": [{"type": "odd"}]}, "input[0].type"),
        ({"input": [{"role": "boss", "content": "x"}]}, "input[0].role"),
        ({"input": [user(None)]}, "input[0].content"),
        ({"input": [user([])]}, "input[0].content"),
        ({"input": [user([{"type": "input_text"}])]}, "input[0].content[0].text"),
        ({"input": [user([{"type": "odd"}])]}, "input[0].content[0].type"),
        ({"input": [user([{"type": "input_audio"}])]}, "input[0].content[0].type"),
        ({"input": [user([{"type": "input_image"}])]}, "input[0].content[0].image_url"),
        (
            {"input": [user([{"type": "input_image", "image_url": "ftp://a"}])]},
            "input[0].content[0].image_url",
        ),
        (
            {"input": [user([{"type": "input_image", "file_id": "f"}])]},
            "input[0].content[0].file_id",
        ),
        (
            {"input": [user([{"type": "input_file", "file_url": "http://a"}])]},
            "input[0].content[0].file_url",
        ),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": 7}}}, SCHEMA_PATH),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, SCHEMA_PATH),
        ({"tool_choice": {"type": 7}}, "tool_choice.type"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": 7}]}]},
            "tools[0].tools[0].type",
        ),
        ({"input": [user([file_part(b"\xff\x00")])]}, "input[0].content[0].file_data"),
        ({"input": [user([file_part(b"%PDF-1.4 no")])]}, "input[0].content[0].file_data"),
        ({"input": [{**CALL, "arguments": {}}, OUTPUT]}, "input[0].arguments"),
        ({"input": [user("q"), CALL]}, "input[1]"),
        ({"input": [CALL, OUTPUT, {**OUTPUT, "call_id": "d"}]}, "input[2].call_id"),
        ({"input": [CALL, CALL, OUTPUT]}, "input[1].call_id"),
        ({"input": [CALL, OUTPUT, OUTPUT]}, "input[2].call_id"),
        ({"input": [CALL, {**OUTPUT, "output": 7}]}, "input[1].output"),
        ({"input": [{"type": "item_reference", "id": "msg_x_0"}]}, "input[0].id"),
        ({"input": [{"id": "rs_x_0"}]}, "input[0].id"),
        ({"input": [{"type": "reasoning", "content": "x"}]}, "input[0].content"),
        (
            {"input": [{"type": "reasoning", "encrypted_content": "gAAAA"}]},
            "input[0].encrypted_content",
        ),
        ({"tools": {}}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"type": "odd"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**FUNCTION, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
        ({"tools": [{**FUNCTION, "parameters": {"type": "array"}}]}, "tools[0].parameters.type"),
        ({"tools": [{**NAMESPACE, "tools": [{"type": "mcp"}]}]}, "tools[0].tools[0].type"),
        ({"tools": [{**CUSTOM, "format": {"type": "grammar"}}]}, "tools[0].format.syntax"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        (
            {
                "tools": [FUNCTION],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "g"}],
                },
            },
            "tool_choice.tools[0].name",
        ),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"effort": 0}}, "reasoning.effort"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object"}}}, "input"),
        ({"include": ["everything"]}, "include[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"temperature": 2.1}, "temperature"),
        ({"truncation": "some"}, "truncation"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"previous_response_id": 5}, "previous_response_id"),
    ],
)
def test_a_wrong_field_is_named_by_its_exact_path(fields, param: str) -> None:
    error = refusal(**fields)
    assert error["params"] == [param]
    assert error["param"] == param
    assert error["status"] == (404 if param == "input[0].id" else 400)


def test_all_problems_are_told_together() -> None:
    wrong_items = [user(5), {"type": "odd"}]
    error = refusal(input=wrong_items, tools=[{"type": "mcp"}], temperature="hot", background=True)
    assert set(error["params"]) == {
        *("temperature", "background", "tools[0].type", "input[0].content", "input[1].type")
    }


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_items_of_server_tools_are_refused_by_name(kind: str) -> None:
    error = refusal(input=[user("q"), {"type": kind, "id": "x"}])
    assert (error["param"], error["code"]) == ("input[1].type", "unsupported_parameter")


@pytest.mark.parametrize("kind", sorted(LEFT_OUT))
def test_items_that_are_left_out_are_warned_of(kind: str) -> None:
    parsed = parse(input=[user("q"), {"type": kind, "id": "x"}])
    assert len(parsed.conversation.messages) == 1
    assert any(warning.startswith("input[1]") for warning in parsed.warnings)


def test_every_known_item_type_has_one_fate() -> None:
    assert not (ITEM_TYPES.keys() & REFUSED) and not (ITEM_TYPES.keys() & LEFT_OUT)


def test_an_agents_turn_is_folded_and_results_follow_the_order_of_calls() -> None:
    other = {**CALL, "call_id": "d", "namespace": "ns"}
    items = [
        user("q"),
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        *(CALL, other),
        *({**OUTPUT, "call_id": "d", "output": [{"type": "input_text", "text": "D"}]}, OUTPUT),
        {"role": "assistant", "content": "end"},
    ]
    asked, turn, first, second, last = parse(input=items).conversation.messages
    assert said(asked) == ["q"]
    assert (turn.role, turn.reasoning, said(turn)) == (Role.ASSISTANT, "R", ["A"])
    assert turn.tool_calls == (
        ToolCall("c", "f", '{"a": 1.50}'),
        ToolCall("d", "f", '{"a": 1.50}', namespace="ns"),
    )
    assert [(m.role, m.tool_call_id, said(m)) for m in (first, second)] == [
        (Role.TOOL, "c", ["done"]),
        (Role.TOOL, "d", ["D"]),
    ]
    assert (said(last), last.reasoning) == (["end"], None)


def test_words_after_a_call_stay_in_its_turn_with_a_warning() -> None:
    parsed = parse(input=[CALL, {"role": "assistant", "content": "B"}, OUTPUT])
    turn, _ = parsed.conversation.messages
    assert said(turn) == ["B"] and len(turn.tool_calls) == 1
    assert any(warning.startswith("input[1]:") for warning in parsed.warnings)


def test_a_custom_call_keeps_its_free_text() -> None:
    call = {"type": "custom_tool_call", "call_id": "c", "name": "calc", "input": "1 + 1\n"}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "2"}
    turn, result = parse(input=[call, output], tools=[CUSTOM]).conversation.messages
    assert turn.tool_calls == (ToolCall("c", "calc", "1 + 1\n", ToolKind.CUSTOM),)
    assert said(result) == ["2"]


def test_found_tools_are_declared_where_they_were_found() -> None:
    search = {"type": "tool_search_call", "call_id": "c", "arguments": {"q": "x"}}
    found = {"type": "tool_search_output", "call_id": "c", "tools": [NAMESPACE]}
    parsed = parse(input=[user("q"), search, found, user("go")])
    _, turn, result, declared, _ = parsed.conversation.messages
    assert turn.tool_calls[0].arguments == '{"q":"x"}'
    assert json.loads(said(result)[0])[0]["namespace"] == {"name": "ns", "description": "group"}
    assert [tool.name for tool in declared.declared_tools] == ["f"]
    (known,) = parsed.conversation.tools
    assert (known.namespace, known.deferred) == ("ns", True)


def test_tools_can_be_added_in_mid_conversation() -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]}
    parsed = parse(input=[user("q"), added, user("go")])
    _, declared, _ = parsed.conversation.messages
    assert [tool.name for tool in declared.declared_tools] == ["f"]
    assert [tool.deferred for tool in parsed.conversation.tools] == [True]


def test_reasoning_after_words_begins_a_turn_of_its_own() -> None:
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "R"}]}
    said_first = {"role": "assistant", "content": "A"}
    first, second = parse(input=[said_first, thought]).conversation.messages
    assert (said(first), first.reasoning) == (["A"], None)
    assert (said(second), second.reasoning) == ([], "R")


def test_a_tools_result_can_hold_images() -> None:
    image = {"type": "input_image", "image_url": PNG}
    _, result = parse(input=[CALL, {**OUTPUT, "output": [image]}]).conversation.messages
    assert isinstance(result.parts[0], ImagePart)
    error = refusal(input=[{"role": "assistant", "content": [image]}])
    assert error["param"] == "input[0].content[0]"


def test_instructions_are_the_first_system_message() -> None:
    parsed = parse(input=[{"role": "developer", "content": "D"}, user("q")], instructions="I")
    roles = [message.role for message in parsed.conversation.messages]
    assert roles == [Role.SYSTEM, Role.DEVELOPER, Role.USER]


def test_files_become_text_and_what_is_lost_is_told() -> None:
    parts = [
        {"type": "input_text", "text": "read"},
        file_part("naïve".encode(), "a.txt"),
        file_part(make_pdf(["Whales sing"]), "b.pdf", "data:application/pdf;base64,"),
    ]
    parsed = parse(input=[user(parts)])
    assert said(parsed.conversation.messages[0]) == [
        "read",
        "a.txt\n\nnaïve",
        "b.pdf\n\nWhales sing",
    ]
    assert any(warning.startswith("input[0].content[2]: ") for warning in parsed.warnings)


def test_images_keep_place_and_detail() -> None:
    parts = [
        {"type": "input_image", "image_url": "https://e.org/a.png", "detail": "low"},
        {"type": "input_image", "image_url": PNG},
    ]
    first, second = parse(input=[user(parts)]).conversation.messages[0].parts
    assert isinstance(first, ImagePart) and isinstance(second, ImagePart)
    assert (first.url, first.detail, first.param) == (
        "https://e.org/a.png",
        "low",
        "input[0].content[0]",
    )
    assert (second.media_type, second.detail) == ("image/png", "high")


def test_images_are_refused_for_a_model_without_vision() -> None:
    part = {"type": "input_image", "image_url": PNG}
    with pytest.raises(RequestRefused) as caught:
        parse(ParseLimits(max_choices=8, has_vision=False), input=[user([part])])
    assert [problem.param for problem in caught.value.problems] == ["input[0].content[0]"]


def test_tools_of_all_kinds() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
    tools = [
        {**FUNCTION, "description": "does", "strict": True},
        NAMESPACE,
        {**CUSTOM, "format": grammar},
        {"type": "apply_patch"},
        {"type": "tool_search", "execution": "client", "description": "find"},
        {"type": "web_search"},
    ]
    parsed = parse(tools=tools)
    plain, grouped, custom, patch, search = parsed.conversation.tools
    assert (plain.name, plain.strict, plain.description) == ("f", True, "does")
    assert (grouped.namespace, grouped.namespace_description) == ("ns", "group")
    assert (custom.kind, custom.grammar) == (ToolKind.CUSTOM, ("lark", 'start: "a"'))
    assert (patch.name, patch.kind) == ("apply_patch", ToolKind.CUSTOM)
    assert search.name == "tool_search" and parsed.echo.searches_tools
    assert {warning.partition(":")[0] for warning in parsed.warnings} == {"tools[3]", "tools[5]"}


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        (None, "auto", ()),
        ("none", "none", ()),
        ("required", "required", ()),
        ({"type": "function", "name": "f"}, "required", ("f",)),
        ({"type": "function", "name": "ns::f"}, "required", ("ns::f",)),
        ({"type": "function", "name": "ns__f"}, "required", ("ns::f",)),
        ({"type": "function", "name": "f", "namespace": "ns"}, "required", ("ns::f",)),
        ({"type": "custom", "name": "calc"}, "required", ("calc",)),
        ({"type": "web_search"}, "auto", ()),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "custom", "name": "calc"}, {"type": "function", "name": "f"}],
            },
            "auto",
            ("calc", "f"),
        ),
    ],
)
def test_tool_choices(choice, mode: str, names: tuple[str, ...]) -> None:
    parsed = parse(tools=[FUNCTION, NAMESPACE, CUSTOM], tool_choice=choice)
    assert parsed.conversation.tool_choice.mode is ToolChoiceMode(mode)
    assert parsed.conversation.tool_choice.names == names
    assert parsed.conversation.tool_choice.parallel


def test_parts_and_tools_of_a_request_are_bounded() -> None:
    parts = [{"type": "input_text", "text": ""}] * 30_000
    assert refusal(input=[user(parts), user(parts)])["params"] == ["input[1].content"]
    inner = [{"type": "function", "name": f"f{index}"} for index in range(20_000)]
    group = {"type": "namespace", "name": "ns", "tools": inner}
    assert refusal(tools=[group])["params"] == ["tools"]


def test_parallel_calls_can_be_forbidden() -> None:
    parsed = parse(tools=[FUNCTION], parallel_tool_calls=False)
    assert not parsed.conversation.tool_choice.parallel
    assert parsed.echo.fields["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("reasoning", "enabled", "effort", "percent", "budget"),
    [
        (None, None, None, None, None),
        ({}, None, None, None, None),
        ({"effort": "none"}, False, None, None, None),
        ({"effort": "minimal"}, True, Effort.MINIMAL, None, None),
        ({"effort": "ultra"}, True, Effort.MAX, None, None),
        ({"effort": 37}, True, None, 37, None),
        ({"effort": "low", "budget_tokens": 64}, True, Effort.LOW, None, 64),
    ],
)
def test_reasoning_efforts(reasoning, enabled, effort, percent, budget) -> None:
    thinking = parse(reasoning=reasoning).conversation.thinking
    assert (thinking.enabled, thinking.effort) == (enabled, effort)
    assert (thinking.effort_percent, thinking.budget_tokens) == (percent, budget)


def test_a_schema_is_passed_on_in_the_clients_order() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}, "$defs": {"x": True}}
    shape = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    constraint = parse(text={"format": shape}).conversation.response_format
    assert constraint is not None
    assert (constraint.kind, constraint.param) == (ConstraintKind.JSON_SCHEMA, "text.format.schema")
    assert json.loads(constraint.source) == schema
    assert constraint.source.index('"b"') < constraint.source.index('"a"')


def test_json_mode_needs_the_word() -> None:
    parsed = parse(input="give me JSON", text={"format": {"type": "json_object"}})
    assert parsed.conversation.response_format is not None
    assert parsed.conversation.response_format.kind is ConstraintKind.JSON_OBJECT


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, False),
        ({"top_logprobs": 0}, True),
        ({"include": ["message.output_text.logprobs"]}, True),
    ],
)
def test_logprobs_are_asked_for_in_two_ways(fields, shown: bool) -> None:
    parsed = parse(**fields)
    assert parsed.sampling.logprobs is shown
    assert parsed.echo.shows_logprobs is shown


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"top_p": 0}, "top_p"),
        ({"zebra": 1}, "zebra"),
        ({"input": [{**user("q"), "zebra": 1}]}, "input[0].zebra"),
        ({"tools": [{**FUNCTION, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{"type": "tool_search"}]}, "tools[0]"),
        ({"store": True}, "store"),
        ({"instructions": "x" * 70_000}, "instructions"),
        ({"service_tier": "prority"}, "service_tier"),
        (
            {"input": [{"type": "reasoning", "summary": [{"text": "s"}]}, user("q")]},
            "input[0].summary",
        ),
    ],
)
def test_everything_that_is_changed_is_warned_of(fields, warned: str) -> None:
    assert [warning.partition(": ")[0] for warning in parse(**fields).warnings] == [warned]


@pytest.mark.parametrize(
    ("tier", "priority", "told"),
    [("auto", 0, "default"), ("priority", 1, "priority"), ("flex", -1, "flex")],
)
def test_the_service_tier_is_a_place_in_line_and_told(tier, priority, told) -> None:
    parsed = parse(service_tier=tier)
    assert (parsed.priority, parsed.echo.fields["service_tier"]) == (priority, told)


def test_blocks_are_kept_as_long_as_asked() -> None:
    assert parse(cache_ttl="1h").cache_ttl_s == 3600
    with pytest.raises(RequestRefused) as caught:
        parse(cache_ttl=-1)
    assert [problem.param for problem in caught.value.problems] == ["cache_ttl"]


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": "b"}, "prompt_cache_key": "k", "safety_identifier": "s"},
        {"store": False, "max_tool_calls": 3, "truncation": "disabled", "tools": []},
        {
            "temperature": None,
            "text": None,
            "reasoning": None,
            "tool_choice": None,
            "include": None,
        },
        {"text": {"verbosity": "medium"}, "tool_choice": "auto", "service_tier": "auto"},
    ],
)
def test_ordinary_fields_are_taken_without_a_word(fields) -> None:
    assert parse(**fields).warnings == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = (
    *("input", "tools", "tool_choice", "text", "reasoning", "include", "metadata", "instructions"),
    *("top_logprobs", "stream_options", "previous_response_id", "conversation", "store", "model"),
)
KINDS = [*ITEM_TYPES, "function", "custom", "namespace", "tool_search", "odd"]
MEMBERS = (
    *("id", "role", "content", "call_id", "name", "arguments", "output", "input", "tools"),
    *("encrypted_content", "summary", "format", "parameters", "execution", "namespace"),
)
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)}, optional=dict.fromkeys(MEMBERS, JSON)
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON | st.lists(PARTS, max_size=3), max_size=5))
def test_any_body_is_understood_or_refused(fields) -> None:
    try:
        parsed = RESPONSES.parse(
            json.dumps({"model": "m", "input": "q", **fields}).encode(), LIMITS
        )
    except RequestRefused as refused:
        rendered = RESPONSES.render_refusal(refused.problems)
        assert 400 <= rendered.http_status < 500
    else:
        assert parsed.conversation.messages
