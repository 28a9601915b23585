"""A client comes back for its answer: at another gateway, from where it was, or for all of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from rorqual_runtime.errors import Unavailable
from rorqual_runtime.settings import RuntimeSettings

from tests.integration.gateway.conftest import ApiFleet
from tests.support.api_services import RunningGateway, running_gateway, running_recipe
from tests.support.chat_model_dir import MODEL_ID
from tests.support.servers import RedisServer
from tests.support.stub_backend import Playback
from tests.support.waiting import WAIT_S, soon, until

USER = [{"role": "user", "content": "Hello"}]
TEXT = "The quick brown fox — naïve café 深度求索。 " * 3
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "n": 2},
    "/v1/messages": {"messages": USER, "max_tokens": 900},
    "/v1/responses": {"input": "Hello", "store": False},
    "/v1/completions": {"prompt": "Hello"},
}


@pytest.fixture
def runtime_settings(runtime_settings: RuntimeSettings, redis_server: RedisServer):
    return runtime_settings.model_copy(update={"redis_url": redis_server.url})


class Reader:
    """A client of one answer: its events so far, and the id of the last one."""

    def __init__(self, path: str, *, key: str = "k1", **fields: Any) -> None:
        self.path = path
        self.body = {"model": MODEL_ID, "stream": True, **REQUESTS[path], **fields}
        self.key = key
        self.events: list[str] = []
        self.last_id = ""

    async def read(self, url: str, *, num_events: int = 10_000) -> int:
        """Up to so many more events; the status."""
        headers = {"Idempotency-Key": self.key}
        if self.last_id:
            headers["Last-Event-ID"] = self.last_id
        async with (
            httpx.AsyncClient(timeout=WAIT_S) as client,
            client.stream("POST", url + self.path, json=self.body, headers=headers) as reply,
        ):
            async for line in reply.aiter_lines():
                if line.startswith("id: "):
                    self.last_id = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    self.events.append(line)
                    num_events -= 1
                    if not num_events:
                        break
            return reply.status_code


def play(fleet: ApiFleet, text: str = TEXT, **fields: Any) -> None:
    tokens = [[token] for token in fleet.tokens(text)]
    fleet.backend.play = lambda _generation: Playback(tokens, **fields)


def post(gateway: RunningGateway, body: dict[str, Any], **headers: str) -> httpx.Response:
    reply = httpx.post(
        f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=WAIT_S
    )
    assert isinstance(reply, httpx.Response)
    return reply


@asynccontextmanager
async def another_gateway(settings: RuntimeSettings) -> AsyncIterator[RunningGateway]:
    fast = {"silence_probe_s": 0.2, "take_over_after_s": 0.3}
    async with running_gateway(settings, **fast) as gateway:
        await until(lambda: gateway.service.fleet.live("recipe"))
        yield gateway


@pytest.mark.parametrize("path", REQUESTS)
async def test_an_answer_in_four_parts_is_the_answer(
    start_fleet, runtime_settings: RuntimeSettings, path: str
) -> None:
    fleet = await start_fleet()
    play(fleet, pause_s=0.01)
    async with another_gateway(runtime_settings) as second:
        reader = Reader(path)
        for number, num_events in enumerate((1, 7, 30, 10_000)):
            gateway = (fleet.gateway, second)[number % 2]
            assert await reader.read(gateway.url, num_events=num_events) == 200
        whole = Reader(path)  # it has ended: the same bytes again
        assert await whole.read(fleet.gateway.url) == 200
    assert reader.events == whole.events
    num_choices = 2 if "n" in REQUESTS[path] else 1
    assert len(fleet.backend.submitted) == num_choices
    assert not fleet.backend.cancels


async def test_a_gateway_that_was_lost_is_not_needed(
    start_fleet, runtime_settings: RuntimeSettings
) -> None:
    fleet = await start_fleet()
    play(fleet, pause_s=0.02)
    reader = Reader("/v1/chat/completions")
    async with another_gateway(runtime_settings) as second:
        reading = asyncio.create_task(reader.read(fleet.gateway.url))
        await until(lambda: len(reader.events) > 10)
        await fleet.gateway.ctx.bus.close()  # it is alive, and nobody hears it
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert await reader.read(second.url) == 200
    assert len(fleet.backend.submitted) == 2
    assert reader.events[-1] == "data: [DONE]"
    texts = {0: "", 1: ""}
    for event in reader.events[:-1]:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == {0: TEXT, 1: TEXT}


async def test_recipe_and_client_are_gone_and_the_rest_is_made_again(
    start_fleet, runtime_settings: RuntimeSettings, chat_model_dir: Path
) -> None:
    fleet = await start_fleet()
    play(fleet, pause_s=0.02)
    reader = Reader("/v1/responses")
    async with another_gateway(runtime_settings) as second:
        await reader.read(fleet.gateway.url, num_events=12)
        async with running_recipe(runtime_settings, chat_model_dir):
            await fleet.recipe.ctx.bus.close()
            assert await reader.read(second.url) == 200
    numbers = [json.loads(e.removeprefix("data: "))["sequence_number"] for e in reader.events]
    assert numbers == list(range(len(numbers)))
    last = json.loads(reader.events[-1].removeprefix("data: "))
    assert last["response"]["output"][0]["content"][0]["text"] == TEXT


async def test_a_key_belongs_to_one_request(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say("Hello")
    body = {"model": MODEL_ID, "messages": USER}
    first = await asyncio.to_thread(post, fleet.gateway, body, **{"Idempotency-Key": "a"})
    again = await asyncio.to_thread(post, fleet.gateway, body, **{"Idempotency-Key": "a"})
    assert (first.status_code, again.content) == (200, first.content)
    assert len(fleet.backend.submitted) == 1
    middle = {"Idempotency-Key": "a", "Last-Event-ID": "1.0.3."}
    partly = await asyncio.to_thread(post, fleet.gateway, body, **middle)
    assert partly.status_code == 400
    assert "not streamed" in partly.text
    other = await asyncio.to_thread(
        post, fleet.gateway, {**body, "temperature": 0.5}, **{"Idempotency-Key": "a"}
    )
    assert other.status_code == 422
    assert "used for another request" in other.json()["error"]["message"]


async def test_what_failed_is_asked_anew(start_fleet) -> None:
    fleet = await start_fleet()
    body = {"model": MODEL_ID, "messages": USER}
    bad = await asyncio.to_thread(
        post, fleet.gateway, {"model": MODEL_ID}, **{"Idempotency-Key": "a"}
    )
    assert bad.status_code == 400
    fleet.say("Hello")
    good = None
    async with asyncio.timeout(WAIT_S):
        while good is None or good.status_code == 422:  # the key is let go behind the answer
            good = await asyncio.to_thread(post, fleet.gateway, body, **{"Idempotency-Key": "a"})
    assert good.status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Last-Event-ID": "1.0.3."}, 400),
        ({"Last-Event-ID": "nonsense", "Idempotency-Key": "a"}, 400),
        ({"Last-Event-ID": "1.0.3.", "Idempotency-Key": "never-used"}, 404),
        ({"Idempotency-Key": "x" * 256}, 400),
    ],
)
async def test_what_cannot_be_gone_on_with_is_said(
    start_fleet, headers: dict[str, str], status: int
) -> None:
    fleet = await start_fleet()
    body = {"model": MODEL_ID, "messages": USER}
    reply = await asyncio.to_thread(post, fleet.gateway, body, **headers)
    assert reply.status_code == status, reply.text
    assert not fleet.backend.submitted


async def test_an_answer_nobody_comes_back_for_is_ended(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.recipe.service._listeners._patience_s = 0.3
    play(fleet, pause_s=0.05)
    reader = Reader("/v1/chat/completions")
    await reader.read(fleet.gateway.url, num_events=3)
    await until(lambda: fleet.backend.cancels)
    assert fleet.backend.cancels[0][1].reason == "client_gone"
    assert fleet.recipe.service.num_active == 0


async def test_a_client_on_a_new_connection_takes_the_place_of_the_old_one(start_fleet) -> None:
    fleet = await start_fleet()
    play(fleet, pause_s=0.02)
    old, new = Reader("/v1/completions"), Reader("/v1/completions")
    reading = asyncio.create_task(old.read(fleet.gateway.url))
    await until(lambda: len(old.events) > 3)
    assert await new.read(fleet.gateway.url) == 200
    with pytest.raises(httpx.RemoteProtocolError):
        await soon(reading)
    assert new.events[-1] == "data: [DONE]"
    assert len(fleet.backend.submitted) == 1
    assert not fleet.backend.cancels


async def test_the_official_client_reads_events_with_ids_and_idle_times(start_fleet) -> None:
    fleet = await start_fleet(keepalive_s=0.1)
    play(fleet, "Hello", pause_s=0.3)
    stream = await fleet.client.chat.completions.create(
        model=MODEL_ID,
        messages=USER,  # type: ignore[arg-type]
        stream=True,
        extra_headers={"Idempotency-Key": "official"},
    )
    texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(texts) == "Hello"
    assert isinstance(stream, openai.AsyncStream)


async def test_recipe_that_is_not_heard_for_a_moment_is_told_who_left(start_fleet) -> None:
    """Nobody else is told to let go: the answer may be another gateway's by then."""
    fleet = await start_fleet()
    fleet.recipe.service._listeners._patience_s = 0.3
    play(fleet, pause_s=0.05)
    ask, num_asked = fleet.gateway.service._ask_recipe, 0

    async def cut_off_once(recipe_id: str, request: Any) -> Any:
        nonlocal num_asked
        num_asked += request.leaves
        if request.leaves and num_asked == 1:
            raise Unavailable("cut off")
        return await ask(recipe_id, request)

    fleet.gateway.service._ask_recipe = cut_off_once  # type: ignore[method-assign]
    await Reader("/v1/completions").read(fleet.gateway.url, num_events=3)
    await until(lambda: num_asked == 1)
    assert not fleet.backend.cancels
    await until(lambda: fleet.backend.cancels)
    assert num_asked == 2
