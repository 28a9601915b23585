"""Messages through the real `anthropic` library: thinking, calls, broken streams, keys."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest
from rorqual_recipe.encodings.base import Special
from rorqual_recipe.tokens.segments import encode_segments
from rorqual_runtime.errors import Unavailable

from tests.integration.gateway.conftest import ApiFleet
from tests.support.chat_model_dir import MODEL_ID
from tests.support.dsml_model_dir import TOKENS, make_dsml_model_dir
from tests.support.stub_backend import Playback

RUN: Any = {
    "name": "run",
    "input_schema": {"type": "object", "properties": {"cmd": {"type": "string"}}},
}
THINK: Any = {"type": "enabled", "budget_tokens": 1024}
ASK: list[Any] = [{"role": "user", "content": "Look."}]
CALL = (
    *("Let me see.", "</think>", "Looking…\n\n<", "｜DSML｜", " calls>\n<", "｜DSML｜"),
    *(' invoke name="run">\n<', "｜DSML｜", ' parameter name="cmd" string="true">ls "é"</'),
    *("｜DSML｜", " parameter>\n</", "｜DSML｜", " invoke>\n</", "｜DSML｜", " calls>"),
)


@pytest.fixture(scope="session")
def chat_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that thinks and calls tools."""
    return make_dsml_model_dir(tmp_path_factory.mktemp("dsml"), encoding="deepseek-v4.1")


@asynccontextmanager
async def connected(fleet: ApiFleet, key: str = "k") -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=fleet.gateway.url, api_key=key, max_retries=0, timeout=60.0
    ) as client:
        yield client


def ids_of(fleet: ApiFleet, parts: Sequence[str]) -> list[int]:
    model = fleet.recipe.model
    added = model.vocabulary.added
    segments = [Special(added[p], p) if p in TOKENS.values() else p for p in parts]
    return encode_segments(segments, model.encoder).tolist()


async def test_thinking_and_a_call_the_same_streamed_or_whole(start_fleet) -> None:
    fleet: ApiFleet = await start_fleet()
    deltas = [[token] for token in ids_of(fleet, CALL)]
    fleet.backend.play = lambda _g: Playback(deltas, num_cached_tokens=4)
    options: dict[str, Any] = {
        "model": MODEL_ID,
        "messages": ASK,
        "max_tokens": 99,
        "tools": [RUN],
        "thinking": THINK,
    }
    async with connected(fleet) as client:
        whole = await client.messages.create(**options)
        async with client.messages.stream(**options) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_message()
    assert [block.to_dict() | {"id": ""} for block in streamed.content] == [
        block.to_dict() | {"id": ""} for block in whole.content
    ]
    thinking, text, call = whole.content
    assert thinking.type == "thinking" and thinking.thinking == "Let me see."
    assert text.type == "text" and text.text == "Looking…"
    assert call.type == "tool_use" and (call.name, call.input) == ("run", {"cmd": 'ls "é"'})
    assert {"thinking", "signature", "text", "input_json"} <= set(kinds)
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    for usage in (whole.usage, streamed.usage):
        assert usage.cache_read_input_tokens == 4
        assert usage.output_tokens == len(deltas)
        assert usage.output_tokens_details and usage.output_tokens_details.thinking_tokens > 0
    (first, _) = fleet.backend.submitted
    assert whole.usage.input_tokens == first.num_prompt_tokens - 4


async def test_an_answer_comes_back_as_history_without_a_word(start_fleet) -> None:
    fleet: ApiFleet = await start_fleet()
    said = ids_of(fleet, CALL)
    fleet.backend.play = lambda _g: Playback([said])
    options: dict[str, Any] = {"model": MODEL_ID, "max_tokens": 99, "tools": [RUN]}
    async with connected(fleet) as client:
        answer = await client.messages.create(messages=ASK, thinking=THINK, **options)
        call_id = answer.content[-1].id  # type: ignore[union-attr]
        result = {"type": "tool_result", "tool_use_id": call_id, "content": "a b"}
        history = [
            *ASK,
            {"role": "assistant", "content": answer.content},
            {"role": "user", "content": [result]},
        ]
        raw = await client.messages.with_raw_response.create(
            messages=history, thinking=THINK, **options
        )
        assert "x-rorqual-warnings" not in raw.headers
        assert raw.headers["request-id"]
        changed = {**answer.content[0].to_dict(), "thinking": "Let me not see."}
        history[1]["content"] = [changed, *answer.content[1:]]
        raw = await client.messages.with_raw_response.create(
            messages=history, thinking=THINK, **options
        )
    (warning,) = json.loads(raw.headers["x-rorqual-warnings"])
    assert warning.startswith("messages[1].content[0].signature")


async def test_a_failure_is_typed_before_and_inside_a_stream(start_fleet) -> None:
    fleet: ApiFleet = await start_fleet()
    options: dict[str, Any] = {"model": MODEL_ID, "messages": ASK, "max_tokens": 99}
    fleet.backend.play = lambda _g: Playback([], error=Unavailable("decode is gone"))
    async with connected(fleet) as client:
        with pytest.raises(anthropic.InternalServerError) as early:
            await client.messages.create(**options)
        assert early.value.status_code == 503
        assert early.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index,call-overload]
        assert early.value.body["request_id"] == early.value.request_id  # type: ignore[index,call-overload]
        deltas = [[token] for token in ids_of(fleet, ["Hello ", "there."])]
        fleet.backend.play = lambda _g: Playback(
            deltas, pause_s=0.02, error=Unavailable("decode is gone")
        )
        told = []
        stream = await client.messages.create(**options, thinking={"type": "disabled"}, stream=True)
        with pytest.raises(anthropic.APIStatusError) as late:
            async for event in stream:
                told.append(event)
    assert late.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index,call-overload]
    assert late.value.body["request_id"]  # type: ignore[index,call-overload]
    assert told[0].type == "message_start"
    assert told[-1].type == "message_delta"
    assert told[-1].usage.output_tokens == len(deltas)


async def test_keys_arrive_in_anthropics_header(start_fleet) -> None:
    fleet: ApiFleet = await start_fleet(api_keys="team:right")
    fleet.backend.play = lambda _g: Playback([ids_of(fleet, ["Hi"])])
    options: dict[str, Any] = {"model": MODEL_ID, "messages": ASK, "max_tokens": 9}
    async with connected(fleet, "right") as client:
        assert (await client.messages.create(**options)).usage.output_tokens > 0
    async with connected(fleet, "wrong") as client:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            await client.messages.create(**options)
    assert refused.value.body["error"]["type"] == "authentication_error"  # type: ignore[index,call-overload]
