"""Chat Completions bodies: what is accepted, what it becomes, and what is said about the rest."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rorqual_recipe.conversation import ConstraintKind, Role
from rorqual_recipe.encode import cache_namespace, seed_of_request
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.chat.schema import ChatRequest

from tests.support.chat_model_dir import MAX_CONTEXT_TOKENS, MODEL_ID

CHAT = PROTOCOLS["chat_completions"]
LIMITS = ParseLimits(max_choices=8, has_vision=False)


def refusal(encode, **fields) -> dict:
    with pytest.raises(RequestRefused) as caught:
        encode(**fields)
    rendered = CHAT.render_refusal(caught.value.problems)
    return {"status": rendered.http_status, **json.loads(rendered.body_json)["error"]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"min_p": 1}, "min_p"),
        ({"n": 9}, "n"),
        ({"cache_ttl": "5 min"}, "cache_ttl"),
        ({"cache_ttl": True}, "cache_ttl"),
        ({"cache_ttl": 0}, "cache_ttl"),
        ({"cache_ttl": "31d"}, "cache_ttl"),
        ({"n": 0}, "n"),
        ({"seed": 1.5}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a", "b" * 1001]}, "stop[1]"),
        ({"stop": "b" * 1001}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"thinking": {"type": "auto"}}, "thinking.type"),
        ({"thinking": ["disabled"]}, "thinking"),
        ({"reasoning_effort": "High"}, "reasoning_effort"),
        ({"reasoning_effort": 101}, "reasoning_effort"),
        ({"reasoning_effort": True}, "reasoning_effort"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "boss", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "odd"}]}]},
            "messages[0].content[0].type",
        ),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_a_wrong_field_is_named_by_its_exact_path(encode, fields, param: str) -> None:
    error = refusal(encode, **fields)
    assert (error["status"], error["param"]) == (400, param)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "alloy"}},
        {"web_search_options": {}},
        {"stop_token_ids": [7]},
        {"echo": True},
        {"add_generation_prompt": False},
    ],
)
def test_what_is_not_supported_is_refused_not_ignored(encode, fields) -> None:
    error = refusal(encode, **fields)
    assert error["param"] == next(iter(fields))
    assert error["code"] == "unsupported_parameter"


@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "tools": []},
        {"tool_choice": "auto", "parallel_tool_calls": True, "modalities": ["text"]},
        {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"temperature": None, "stop": None, "n": None, "stream": None, "response_format": None},
        {"stop": [], "top_k": -1, "seed": -5},
    ],
)
def test_harmless_fields_are_accepted(encode, fields) -> None:
    assert encode(**fields).parsed.warnings == []


@pytest.mark.parametrize(
    ("asked", "ttl_s"),
    [(None, 0), (1, 1), ("90s", 90), ("5m", 300), ("1h", 3600), ("30d", 2_592_000)],
)
def test_blocks_are_kept_as_long_as_asked(encode, asked, ttl_s) -> None:
    assert encode(cache_ttl=asked).parsed.cache_ttl_s == ttl_s


def test_a_life_that_is_too_long_is_told_with_its_limit(encode) -> None:
    assert "2592000 seconds" in refusal(encode, cache_ttl="31d")["message"]


@pytest.mark.parametrize(
    ("tier", "priority"), [("auto", 0), ("default", 0), ("priority", 1), ("flex", -1), (None, 0)]
)
def test_the_service_tier_is_a_place_in_line(encode, tier, priority) -> None:
    assert encode(service_tier=tier).parsed.priority == priority


def test_a_service_tier_that_is_none_is_warned_of(encode) -> None:
    (warning,) = encode(service_tier="prority").parsed.warnings
    assert warning.startswith("service_tier: ")


def test_every_problem_is_reported_at_once(encode) -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    error = refusal(
        encode,
        temperature=9,
        tools=[{"type": "retrieval"}],
        response_format={"type": "regex"},
        messages=[{"role": "user", "content": [image]}, {"role": "user"}, "hi"],
    )
    for path in (
        *("temperature", "tools[0].type", "response_format.regex"),
        *("messages[0].content[0]", "messages[1].content", "messages[2]"),
    ):
        assert path in error["message"]


def test_an_error_is_short_however_much_is_wrong(encode) -> None:
    error = refusal(encode, messages=[{"role": "boss", "content": 1}] * 5000)
    assert error["param"] == "messages[0].role"
    assert "more problems" in error["message"]
    long_name = refusal(encode, model="m" * 100_000)
    odd_part = [{"role": "user", "content": [{"type": "t" * 100_000}]}]
    for found in (error, long_name, refusal(encode, messages=odd_part)):
        assert len(json.dumps(found)) < 20_000


def test_warnings_are_short_however_many_fields_are_unknown(encode) -> None:
    message = {"role": "user", "content": "a", "x" * 100_000: 1}
    parsed = encode(messages=[message] * 20, **{f"odd{i}": 1 for i in range(5000)}).parsed
    assert 1 <= len(json.dumps(parsed.warnings)) < 10_000


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"model": NaN}', b'"x"', b"[" * 5000]
)
def test_a_body_that_is_no_json_object_is_a_400(body: bytes) -> None:
    with pytest.raises(RequestRefused):
        CHAT.parse(body, LIMITS)


def test_lone_surrogates_never_reach_the_tokenizer() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}'
    with pytest.raises(RequestRefused):
        CHAT.parse(body, LIMITS)


def test_unknown_fields_are_accepted_with_a_warning(encode) -> None:
    parsed = encode(shiny=1, messages=[{"role": "user", "content": "a", "extra": 2}]).parsed
    assert [w.split(":")[0] for w in parsed.warnings] == ["shiny", "messages[0].extra"]


@pytest.mark.parametrize(
    ("fields", "is_told"),
    [
        ({"reasoning_effort": "high"}, True),
        ({"reasoning_effort": 50}, True),
        ({"thinking": {"type": "enabled"}}, True),
        ({"reasoning_effort": "none"}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({}, False),
    ],
)
def test_thinking_that_the_model_does_not_know_is_told(encode, fields, is_told: bool) -> None:
    warnings = encode(**fields).parsed.warnings
    assert any(warning.startswith("thinking: ") for warning in warnings) is is_told


def test_an_unknown_model_is_404(encode) -> None:
    error = refusal(encode, model="nope")
    assert (error["status"], error["code"], error["param"]) == (404, "model_not_found", "model")


def test_roles_and_parts_are_kept(encode) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    encoded = encode(
        messages=[
            {"role": "developer", "content": "answer BANANA"},
            {"role": "user", "content": parts, "name": "ada"},
        ]
    )
    messages = encoded.parsed.conversation.messages
    assert [m.role for m in messages] == [Role.DEVELOPER, Role.USER]
    assert [p.text for p in messages[1].parts] == ["one", "two"]
    assert messages[1].name == "ada"
    assert not encoded.parsed.conversation.has_tool_turns


def test_the_answers_length_is_bounded_by_the_context(encode) -> None:
    encoded = encode()
    assert encoded.sampling.max_new_tokens == 2048
    assert len(np.frombuffer(encoded.prompt, "<i4")) == encoded.num_prompt_tokens
    left = MAX_CONTEXT_TOKENS - encoded.num_prompt_tokens
    assert encode(max_tokens=left).sampling.max_new_tokens == left
    error = refusal(encode, max_completion_tokens=left + 1)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_completion_tokens")
    long = [{"role": "user", "content": "word " * MAX_CONTEXT_TOKENS}]
    error = refusal(encode, messages=long)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    nearly = encode(messages=[{"role": "user", "content": "x" * (MAX_CONTEXT_TOKENS - 100)}])
    assert nearly.num_prompt_tokens + nearly.sampling.max_new_tokens <= MAX_CONTEXT_TOKENS


def test_sampling_and_seeds(encode) -> None:
    plan = encode(temperature=0, top_p=0.5, top_k=7, min_p=0.1, seed=-1, n=2).sampling
    assert (plan.temperature, plan.top_p, plan.top_k, plan.min_p) == (0, 0.5, 7, 0.1)
    assert plan.seed_of(0) == (1 << 64) - 1
    assert plan.seed_of(1) == 0
    assert encode().sampling.temperature == 1.0
    assert encode().sampling.seed == 0, "until a request's own takes its place"
    seeds = [seed_of_request(f"r{number}") for number in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2], "whoever encodes it again must get the same answer"
    assert encode(top_p=0).sampling.temperature == 0


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
@example(5e-324)
@example(1 - 2**-53)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_shares_keep_their_range_in_single_precision(encode, share: float) -> None:
    plan = encode(top_p=share, min_p=share).sampling
    assert 0 < np.float32(plan.top_p) < 1
    assert 0 < np.float32(plan.min_p) < 1


def test_response_formats_become_constraints(encode) -> None:
    assert encode(response_format={"type": "text"}).constraint is None
    json_please = [{"role": "user", "content": "Answer in JSON"}]
    constraint = encode(messages=json_please, response_format={"type": "json_object"}).constraint
    assert constraint.kind is ConstraintKind.JSON_OBJECT
    schema = {"type": "object", "properties": {"größe": {"type": "integer"}}}
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    constraint = encode(response_format=shape).constraint
    assert constraint.kind is ConstraintKind.JSON_SCHEMA
    assert json.loads(constraint.source) == schema


def test_namespaces_never_collide() -> None:
    pairs = [("a", "b"), ("ab", ""), ("a", ""), ('a", "b', ""), ("", "a"), ("a", '"')]
    assert len({cache_namespace(*pair) for pair in pairs}) == len(pairs)


def test_the_model_is_named_in_the_vision_refusal(encode) -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    error = refusal(encode, messages=[{"role": "user", "content": [image]}])
    assert f"model {MODEL_ID} has no vision tower" in error["message"]
    assert error["param"] == "messages[0].content[0]"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.sampled_from(sorted(ChatRequest.model_fields)), JSON, max_size=5)
PARTS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "image_url", "file", "refusal"])},
        optional=dict.fromkeys(("text", "image_url", "file", "refusal", "file_data"), JSON),
    ),
    max_size=2,
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"id": st.sampled_from(["a", "b"]), "type": st.sampled_from(["function", "custom"])},
        optional={"function": JSON, "custom": JSON},
    ),
    max_size=2,
)
MESSAGES = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls"]), JSON, max_size=4)
    | st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "tool", "function", "latest_reminder"]),
            "content": JSON | PARTS,
        },
        optional={
            "tool_calls": CALLS,
            "tool_call_id": st.sampled_from(["a", "b"]),
            "function_call": JSON,
            "prefix": st.booleans(),
        },
    ),
    max_size=4,
)


@given(fields=FIELDS, messages=MESSAGES | JSON)
@settings(max_examples=400, deadline=None)
def test_any_body_is_encoded_or_refused_with_a_renderable_error(encode, fields, messages) -> None:
    try:
        encode(**{"messages": messages, **fields})
    except RequestRefused as refused:
        rendered = CHAT.render_refusal(refused.problems)
        assert rendered.http_status in (400, 404)
        assert json.loads(rendered.body_json)["error"]["message"]


@pytest.mark.parametrize(
    "text",
    [
        '{"model":"tiny-chat","messages":[{"role":"user","content":"a"}],"temperature":1e999}',
        '{"model":"tiny-chat","messages":[{"role":"user","content":"a"}],"seed":'
        + "9" * 5000
        + "}",
        '{"model":"tiny-chat","messages":' + "[" * 100_000,
    ],
)
def test_extreme_numbers_and_nesting_are_refused(text: str) -> None:
    with pytest.raises(RequestRefused):
        CHAT.parse(text.encode(), LIMITS)
