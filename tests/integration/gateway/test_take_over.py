"""A recipe instance dies in mid-answer: another one goes on, nothing comes twice or is missing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from rorqual_recipe.adoption import Adoption
from rorqual_runtime.settings import RuntimeSettings

from tests.integration.gateway.conftest import ApiFleet
from tests.support.api_services import running_recipe
from tests.support.chat_model_dir import MODEL_ID
from tests.support.stub_backend import DECODE_ID, Playback
from tests.support.waiting import WAIT_S, soon, until

USER = [{"role": "user", "content": "Hello"}]
TEXT = "The quick brown fox — naïve café 👩‍👩‍👧‍👦 深度求索。 " * 2
CALL = '\n<tool_call>\n{"name": "f", "arguments": {"a": [1, 2, "é"]}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "tools": [TOOL], "n": 2},
    "/v1/messages": {
        "messages": USER,
        "max_tokens": 900,
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    },
    "/v1/responses": {
        "input": "Hello",
        "store": False,
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    },
}


async def answer_of(
    fleet: ApiFleet, path: str, *, stream: bool, lose: Any = None, after_bytes: int = 0
) -> list[Any]:
    """Events of a stream, or the body; what never repeats is left out."""
    body = {"model": MODEL_ID, "stream": stream, "seed": 1, **REQUESTS[path]}
    text = ""
    async with (
        httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client,
        client.stream("POST", path, json=body, headers={"x-request-id": "same"}) as answer,
    ):
        async for part in answer.aiter_text():
            text += part
            if lose is not None and len(text) > after_bytes:
                await lose()
                lose = None
    events = text.strip().split("\n\n") if stream else [text]
    return [_comparable(event) for event in events]


def _comparable(event: str) -> Any:
    data = event.rpartition("data: ")[2] if "data: " in event else event
    return data if data == "[DONE]" else _without_chance(json.loads(data))


def _without_chance(value: Any) -> Any:
    """Ids are made from the request's, times from the clock."""
    if isinstance(value, list):
        return [_without_chance(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    left_out = ("id", "item_id", "call_id", "created", "created_at", "completed_at")
    return {k: _without_chance(v) for k, v in value.items() if k not in left_out}


def told(events: list[Any]) -> dict[int, list[list[str]]]:
    """What each choice says, neighbouring deltas of one kind put together."""
    told: dict[int, list[list[str]]] = {}
    for event in events:
        parts = event.get("choices", [event]) if isinstance(event, dict) else [{"event": event}]
        for part in parts:
            texts: list[str] = []
            frame = json.dumps(_take_texts(part, texts))
            said = told.setdefault(part.get("index", 0) if len(parts) == 1 else 0, [])
            if texts and said and said[-1][0] == frame:
                said[-1][1] += "".join(texts)
            else:
                said.append([frame, "".join(texts)])
    return told


def _take_texts(value: Any, texts: list[str]) -> Any:
    """The value without the texts of its deltas, which are put into `texts`."""
    if isinstance(value, list):
        return [_take_texts(entry, texts) for entry in value]
    if not isinstance(value, dict):
        return value
    names = ("text", "partial_json", "content", "arguments")
    texts += [value[name] for name in names if isinstance(value.get(name), str)]
    rest = {name: inner for name, inner in value.items() if name not in (*names, "usage")}
    return {name: _take_texts(inner, texts) for name, inner in rest.items()}


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("after_bytes", [0, 9000])
async def test_another_instance_goes_on(
    start_fleet,
    runtime_settings: RuntimeSettings,
    chat_model_dir: Path,
    path: str,
    after_bytes: int,
) -> None:
    fleet = await start_fleet(silence_probe_s=0.2, take_over_after_s=0.3)
    tokens = [[token] for token in fleet.tokens(TEXT + CALL)]
    fleet.backend.play = lambda _g: Playback(tokens, num_cached_tokens=3)
    whole = await answer_of(fleet, path, stream=True)
    fleet.backend.play = lambda _g: Playback(tokens, pause_s=0.01, num_cached_tokens=3)
    async with running_recipe(runtime_settings, chat_model_dir) as second:
        first = fleet.recipe

        async def lose() -> None:
            victim = first if first.service.num_active else second
            await victim.ctx.bus.close()

        resumed = await answer_of(fleet, path, stream=True, lose=lose, after_bytes=after_bytes)
    if path == "/v1/responses":  # its events are numbered, and every token has its own
        assert resumed == whole
    assert told(resumed) == told(whole)
    assert resumed[-1] == whole[-1]
    assert len(fleet.backend.submitted) == 2 * (2 if "n" in REQUESTS[path] else 1)


async def test_who_has_left_the_bus_is_not_waited_for_as_long_as_who_is_slow(
    start_fleet, runtime_settings: RuntimeSettings, chat_model_dir: Path
) -> None:
    fleet = await start_fleet(silence_probe_s=0.2, take_over_after_s=600.0)
    tokens = [[token] for token in fleet.tokens(TEXT)]
    fleet.backend.play = lambda _g: Playback(tokens, pause_s=0.01)
    path = "/v1/chat/completions"
    whole = await answer_of(fleet, path, stream=True)
    async with running_recipe(runtime_settings, chat_model_dir) as second:

        async def lose() -> None:
            victim = fleet.recipe if fleet.recipe.service.num_active else second
            await victim.ctx.bus.close()

        resumed = await answer_of(fleet, path, stream=True, lose=lose, after_bytes=3000)
    assert told(resumed) == told(whole)


@pytest.mark.parametrize("path", REQUESTS)
async def test_an_answer_survives_two_lost_instances(
    start_fleet, runtime_settings: RuntimeSettings, chat_model_dir: Path, path: str
) -> None:
    fleet = await start_fleet(silence_probe_s=0.2, take_over_after_s=0.3)
    tokens = [[token] for token in fleet.tokens(TEXT + CALL)]
    fleet.backend.play = lambda _g: Playback(tokens, pause_s=0.015, num_cached_tokens=3)
    whole = await answer_of(fleet, path, stream=True)
    async with (
        running_recipe(runtime_settings, chat_model_dir) as second,
        running_recipe(runtime_settings, chat_model_dir) as third,
    ):
        alive = [fleet.recipe, second, third]

        async def lose() -> None:
            victim = next(recipe for recipe in alive if recipe.service.num_active)
            alive.remove(victim)
            await victim.ctx.bus.close()

        async def lose_two() -> None:
            await lose()
            await until(lambda: any(recipe.service.num_active for recipe in alive))
            await lose()

        resumed = await answer_of(fleet, path, stream=True, lose=lose_two, after_bytes=3000)
    assert len(alive) == 1
    assert told(resumed) == told(whole)
    assert resumed[-1] == whole[-1]


async def test_an_answer_in_one_piece_is_finished_too(
    start_fleet, runtime_settings: RuntimeSettings, chat_model_dir: Path
) -> None:
    fleet = await start_fleet(silence_probe_s=0.2, take_over_after_s=0.3)
    tokens = [[token] for token in fleet.tokens(TEXT)]
    fleet.backend.play = lambda _g: Playback(tokens, pause_s=0.02)
    ask = fleet.client.chat.completions.create(model=MODEL_ID, messages=USER)  # type: ignore[arg-type]
    request = asyncio.create_task(ask)
    await until(lambda: fleet.backend.num_played > 3)  # in mid-answer
    async with running_recipe(runtime_settings, chat_model_dir):
        await fleet.recipe.ctx.bus.close()
        answer = await soon(request)
    assert answer.choices[0].message.content == TEXT
    assert answer.usage.completion_tokens == len(tokens)


async def test_an_answer_that_was_out_before_anyone_listened_is_found(
    start_fleet, runtime_settings: RuntimeSettings, chat_model_dir: Path, monkeypatch
) -> None:
    async def decode_ids(self: Adoption) -> list[str]:
        return ["decode-nobody", DECODE_ID]

    monkeypatch.setattr(Adoption, "_decode_ids", decode_ids)
    fleet = await start_fleet(silence_probe_s=0.2, take_over_after_s=0.3)
    fleet.say("Hello", hold_s=0.4)
    num_tokens = len(fleet.tokens("Hello"))
    ask = fleet.client.chat.completions.create(model=MODEL_ID, messages=USER)  # type: ignore[arg-type]
    request = asyncio.create_task(ask)
    await until(lambda: fleet.backend.submitted)
    await fleet.recipe.ctx.bus.close()
    await until(lambda: fleet.backend.num_played == num_tokens)  # the answer is out
    async with running_recipe(runtime_settings, chat_model_dir):
        answer = await soon(request)
    assert answer.choices[0].message.content == "Hello"


async def test_a_lost_instance_is_listened_to_once_and_as_long_as_needed(
    start_fleet, runtime_settings: RuntimeSettings, chat_model_dir: Path, monkeypatch
) -> None:
    fleet = await start_fleet(silence_probe_s=0.2, take_over_after_s=0.3)
    fleet.say(TEXT, pause_s=0.02)
    ask = fleet.client.chat.completions.create
    requests = [asyncio.create_task(ask(model=MODEL_ID, messages=USER)) for _ in range(12)]  # type: ignore[arg-type]
    await until(lambda: len(fleet.backend.submitted) == 12)
    async with running_recipe(runtime_settings, chat_model_dir) as second:
        bus, subjects = second.ctx.bus, []
        plain_subscribe, num_subscriptions = bus.subscribe, len(bus.client._subs)

        async def subscribe(subject, *args, **options):
            subjects.append(subject)
            return await plain_subscribe(subject, *args, **options)

        monkeypatch.setattr(bus, "subscribe", subscribe)
        await fleet.recipe.ctx.bus.close()
        answers = await soon(asyncio.gather(*requests))
        assert len(subjects) == 1
        await until(lambda: len(bus.client._subs) == num_subscriptions)
    assert [answer.choices[0].message.content for answer in answers] == [TEXT] * 12


async def test_a_prompt_that_went_with_its_instance_is_submitted_again(
    start_fleet, runtime_settings: RuntimeSettings, chat_model_dir: Path, monkeypatch
) -> None:
    monkeypatch.setattr("rorqual_recipe.adoption.LOST_PROMPT_S", 0.5)
    fleet = await start_fleet(silence_probe_s=0.2, take_over_after_s=0.3)
    fleet.say(TEXT, hold_s=600)
    ask = fleet.client.chat.completions.create(model=MODEL_ID, messages=USER)  # type: ignore[arg-type]
    request = asyncio.create_task(ask)
    await until(lambda: fleet.backend.submitted)
    by_ticket = runtime_settings.model_copy(update={"max_inline_bytes": 16})
    async with running_recipe(by_ticket, chat_model_dir):
        await fleet.recipe.ctx.bus.close()
        fleet.say(TEXT)
        answer = await soon(request)
    assert answer.choices[0].message.content == TEXT
    first, again = fleet.backend.submitted
    assert again.run > first.run
    assert (again.sampling, again.num_output_tokens) == (first.sampling, 0)
