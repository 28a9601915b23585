"""Messages bodies: what is accepted, what it becomes, and what is said about the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.conversation import (
    ConstraintKind,
    Effort,
    ParsedRequest,
    Role,
    ToolChoice,
    ToolChoiceMode,
)
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols import DIRECT_PROTOCOLS, PROTOCOLS
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.messages.request import parse_count_tokens_request
from rorqual_recipe.protocols.messages.schema import MessagesRequest

MESSAGES = PROTOCOLS["messages"]
LIMITS = ParseLimits(max_choices=8, has_vision=True)
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


def parse(limits: ParseLimits = LIMITS, **fields: Any) -> ParsedRequest:
    body = {"model": "m", "max_tokens": 16, "messages": HELLO, **fields}
    return MESSAGES.parse(json.dumps(body).encode(), limits)


def refused_params(**fields: Any) -> list[str]:
    with pytest.raises(RequestRefused) as caught:
        parse(**fields)
    rendered = MESSAGES.render_refusal(caught.value.problems)
    error = json.loads(rendered.body_json)
    assert error["type"] == "error"
    assert (rendered.http_status, error["error"]["type"]) == (400, "invalid_request_error")
    for problem in caught.value.problems[:20]:
        assert problem.param[:100] in error["error"]["message"]
    return [problem.param for problem in caught.value.problems]


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
        ({"stop_sequences": ["b" * 1001]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
        ({"stream": 1}, "stream"),
        ({"system": 4}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"system": [{"type": "text"}]}, "system[0].text"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"thinking": {"budget_tokens": 3}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": "on"}, "thinking"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        (
            {"output_config": {"format": {"type": "xml", "schema": True}}},
            "output_config.format.type",
        ),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [user("text")]}, "messages[0].content[0]"),
        ({"messages": [user({"text": "a"})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "odd"})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": {}})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": []})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "text", "text": 1})]}, "messages[0].content[0].text"),
        ({"messages": [user({"type": "tool_use"})]}, "messages[0].content[0].type"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "name": "a" * 129}]}, "tools[0].name"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        (
            {"tools": [{"name": "f", "input_schema": {"type": "array"}}]},
            "tools[0].input_schema.type",
        ),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools"),
        ({"tools": [SEARCH]}, "tools[0].type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": [7]}}},
            "output_config.format.schema",
        ),
        ({"tool_choice": "auto", "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"type": "required"}, "tools": [TOOL]}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}, "tools": [TOOL]}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [TOOL]}, "tool_choice.name"),
    ],
)
def test_a_wrong_field_is_named_by_its_exact_path(fields: dict[str, Any], param: str) -> None:
    assert refused_params(**fields) == [param]


def test_every_problem_is_reported_at_once() -> None:
    image = {"type": "image", "source": {"type": "file", "file_id": "f"}}
    assert refused_params(
        temperature=9,
        thinking={"type": "maybe"},
        tools=[{"name": "f"}, SEARCH],
        messages=[user({"type": "odd"}, image), {"role": "boss", "content": "a"}],
    ) == [
        "thinking.type",
        "temperature",
        "tools[0].input_schema",
        "tools[1].type",
        "messages[0].content[0].type",
        "messages[0].content[1].source.type",
        "messages[1].role",
    ]


def test_errors_and_warnings_stay_short_however_much_is_wrong() -> None:
    with pytest.raises(RequestRefused) as caught:
        parse(messages=[{"role": "x" * 10_000, "content": 1}] * 3000, model="m" * 100_000)
    rendered = MESSAGES.render_refusal(caught.value.problems)
    assert len(rendered.body_json) < 20_000
    assert b"more problems" in rendered.body_json
    odd = {f"odd{index}" * 100: 1 for index in range(2000)}
    warnings = parse(
        **odd, messages=[{**user({"type": "text", "text": "a", **odd}), **odd}]
    ).warnings
    assert 1 <= len(json.dumps(warnings)) < 10_000


def test_how_much_is_read_of_one_body_is_bounded() -> None:
    assert refused_params(messages=HELLO * 16_385) == ["messages"]
    text = {"type": "text", "text": "a"}
    assert refused_params(messages=[user(*[text] * 65_537)]) == ["messages[0].content"]
    assert len(refused_params(messages=[1] * 9000)) < 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"model": NaN}', b"[" * 5000])
def test_a_body_that_is_no_json_object_is_a_400(body: bytes) -> None:
    with pytest.raises(RequestRefused):
        MESSAGES.parse(body, LIMITS)


def test_blocks_are_kept_as_long_as_asked() -> None:
    assert parse(cache_ttl="1h").cache_ttl_s == 3600
    with pytest.raises(RequestRefused) as caught:
        parse(cache_ttl="1y")
    assert [problem.param for problem in caught.value.problems] == ["cache_ttl"]


@pytest.mark.parametrize(
    ("tier", "priority"), [("auto", 0), ("standard_only", 0), ("priority", 1), ("flex", -1)]
)
def test_the_service_tier_is_a_place_in_line(tier, priority) -> None:
    assert parse(service_tier=tier).priority == priority


def test_a_service_tier_that_is_none_is_warned_of() -> None:
    (warning,) = parse(service_tier="prority").warnings
    assert warning.startswith("service_tier: ")


def test_what_changes_nothing_is_accepted_without_a_word() -> None:
    parsed = parse(
        metadata={"user_id": "u"},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
        betas=["some-beta"],
        speed="standard",
        diagnostics={"previous_message_id": None},
        container=None,
        mcp_servers=[],
        tools=[{**TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}}],
        tool_choice=None,
        system=[{"type": "text", "text": "Be kind", "cache_control": {"type": "ephemeral"}}],
        thinking=None,
    )
    assert parsed.warnings == []


@pytest.mark.parametrize(
    ("fields", "subject"),
    [
        ({"shiny": 1}, "shiny"),
        ({"top_p": 0}, "top_p"),
        ({"speed": "fast"}, "speed"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "display": "omitted"}}, "thinking.display"),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, "output_format"),
        ({"messages": [{**HELLO[0], "name": "n"}]}, "messages[0].name"),
        (
            {"messages": [user({"type": "text", "text": "a", "odd": 1})]},
            "messages[0].content[0].odd",
        ),
        ({"tools": [{**TOOL, "input_examples": []}]}, "tools[0].input_examples"),
    ],
)
def test_what_is_ignored_or_changed_is_told(fields: dict[str, Any], subject: str) -> None:
    assert [warning.split(":")[0] for warning in parse(**fields).warnings] == [subject]


def test_sampling_is_what_was_asked_for() -> None:
    parsed = parse(temperature=0.3, top_p=0.5, top_k=7, stop_sequences=["a", "b"], stream=True)
    sampling = parsed.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.3, 0.5, 7)
    assert (sampling.max_tokens, parsed.stop, parsed.stream) == (16, ("a", "b"), True)
    assert parse(top_p=0).sampling.temperature == 0
    assert parse(max_tokens=None).sampling.max_tokens is None


def test_system_texts_are_one_message_and_none_when_empty() -> None:
    blocks = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    first, second = parse(system=blocks).conversation.messages
    assert (first.role, [part.text for part in first.parts]) == (Role.SYSTEM, ["A", "B"])
    assert second.role is Role.USER
    assert [m.role for m in parse(system="").conversation.messages] == [Role.USER]


@pytest.mark.parametrize(
    ("fields", "enabled", "effort", "budget"),
    [
        ({}, None, None, None),
        ({"thinking": {"type": "adaptive"}}, True, None, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, True, None, 2000),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}, False, None, None),
        ({"output_config": {"effort": "low"}}, True, Effort.LOW, None),
        ({"output_config": {"effort": "none"}}, False, None, None),
        (
            {"thinking": {"type": "enabled"}, "output_config": {"effort": "ultra"}},
            *(True, Effort.MAX, None),
        ),
    ],
)
def test_thinking(fields: dict, enabled: bool | None, effort: Any, budget: int | None) -> None:
    thinking = parse(**fields).conversation.thinking
    assert (thinking.enabled, thinking.effort, thinking.budget_tokens) == (enabled, effort, budget)


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "any"}, ToolChoice(ToolChoiceMode.REQUIRED)),
        ({"type": "none"}, ToolChoice(ToolChoiceMode.NONE)),
        (
            {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
            ToolChoice(ToolChoiceMode.REQUIRED, ("get_weather",), parallel=False),
        ),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            ToolChoice(ToolChoiceMode.AUTO, parallel=False),
        ),
    ],
)
def test_tool_choices_keep_their_meaning(wish: Any, expected: ToolChoice) -> None:
    assert parse(tools=[TOOL], tool_choice=wish).conversation.tool_choice == expected


def test_tools_keep_their_schema_and_their_wishes() -> None:
    (tool,) = parse(tools=[{**TOOL, "strict": True}]).conversation.tools
    assert (tool.name, tool.description, tool.strict) == ("get_weather", "Weather", True)
    assert (tool.parameters, tool.param) == (SCHEMA, "tools[0].input_schema")
    later = parse(tools=[TOOL, {**TOOL, "name": "late", "defer_loading": True}])
    assert [tool.deferred for tool in later.conversation.tools] == [False, True]


def test_a_format_is_a_constraint_that_knows_its_field() -> None:
    shape = {"type": "json_schema", "schema": SCHEMA}
    found = parse(output_config={"format": shape}).conversation.response_format
    assert found and found.kind is ConstraintKind.JSON_SCHEMA
    assert json.loads(found.source) == SCHEMA
    assert found.param == "output_config.format.schema"
    assert parse(output_format=shape).conversation.response_format == (
        type(found)(found.kind, found.source, "output_format.schema")
    )


def test_web_search_can_be_dropped_but_only_when_the_fleet_says_so() -> None:
    limits = ParseLimits(max_choices=1, has_vision=False, drop_server_tools=True)
    history = [
        *HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                {"type": "text", "text": "found"},
            ],
        },
        *HELLO,
    ]
    parsed = parse(limits, tools=[SEARCH, TOOL], messages=history)
    assert [tool.name for tool in parsed.conversation.tools] == ["get_weather"]
    assert [part.text for part in parsed.conversation.messages[1].parts] == ["found"]
    assert [warning.split(":")[0] for warning in parsed.warnings] == [
        *("tools[0]", "messages[1].content[0]", "messages[1].content[1]")
    ]
    assert refused_params(messages=history) == ["messages[1].content[0]", "messages[1].content[1]"]


async def test_tokens_are_counted_as_they_are_prompted(model) -> None:
    from rorqual_recipe.encode import encode_request
    from rorqual_recipe.protocols.direct import DirectServices

    async def compute(work, num_bytes: int):
        return work()

    body = {"model": model.model_id, "messages": HELLO, "system": "Be kind"}
    services = DirectServices(model, LIMITS, compute)
    status, answer = await DIRECT_PROTOCOLS["count_tokens"].answer(
        json.dumps(body).encode(), "", "t", services
    )
    encoded = encode_request(
        json.dumps({**body, "max_tokens": 5}).encode(),
        *(MESSAGES, model),
        default_max_tokens=5,
        limits=LIMITS,
    )
    assert (status, json.loads(answer)) == (200, {"input_tokens": encoded.num_prompt_tokens})
    wrong = json.dumps({**body, "model": "nope"}).encode()
    with pytest.raises(RequestRefused) as caught:
        await DIRECT_PROTOCOLS["count_tokens"].answer(wrong, "", "t", services)
    rendered = DIRECT_PROTOCOLS["count_tokens"].render_refusal(caught.value.problems)
    assert rendered.http_status == 404
    assert json.loads(rendered.body_json)["error"]["type"] == "not_found_error"


def test_counting_needs_no_length_and_names_the_same_problems() -> None:
    body = {"model": "m", "messages": [user({"type": "odd"})], "tools": [{"name": "f"}]}
    with pytest.raises(RequestRefused) as caught:
        parse_count_tokens_request(json.dumps(body).encode(), LIMITS)
    assert [problem.param for problem in caught.value.problems] == [
        *("tools[0].input_schema", "messages[0].content[0].type")
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
KINDS = [
    *("text", "image", "document", "search_result", "thinking", "redacted_thinking", "tool_use"),
    *("tool_result", "tool_reference", "tool_addition", "server_tool_use", "odd"),
]
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS) | JSON},
    optional={
        **dict.fromkeys(("text", "thinking", "name", "tool_name"), st.text(max_size=5) | JSON),
        **dict.fromkeys(("id", "tool_use_id"), st.sampled_from(["a", "b"])),
        "input": JSON,
        "data": JSON,
        "content": JSON,
        "source": JSON
        | st.fixed_dictionaries({"type": st.sampled_from(["base64", "text", "url"])}),
    },
)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "content": st.text(max_size=5) | st.lists(BLOCK, max_size=4) | JSON,
    }
)
FIELDS = st.dictionaries(st.sampled_from(sorted(MessagesRequest.model_fields)), JSON, max_size=4)


@given(fields=FIELDS, messages=st.lists(MESSAGE, max_size=4) | JSON)
@settings(max_examples=300, deadline=None)
def test_any_body_is_understood_or_refused_with_a_renderable_error(fields, messages) -> None:
    try:
        parsed = parse(**{"messages": messages, **fields})
    except RequestRefused as refused:
        rendered = MESSAGES.render_refusal(refused.problems)
        assert json.loads(rendered.body_json)["error"]["message"]
    else:
        assert parsed.conversation.messages
