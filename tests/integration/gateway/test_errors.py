"""Errors reach clients as the typed exceptions of the real client library, and never as silence."""

from __future__ import annotations

import asyncio
import json
import socket

import httpx
import openai
import pytest
from rorqual_gateway import http_answer, server
from rorqual_recipe.output.answer import AnswerReader
from rorqual_runtime.errors import NoCapacity, Unavailable

from tests.integration.gateway.conftest import never
from tests.support.chat_model_dir import MODEL_ID
from tests.support.stub_backend import Playback
from tests.support.waiting import WAIT_S, soon, until

MESSAGES = [{"role": "user", "content": "Hello"}]
BODY = {"model": MODEL_ID, "messages": MESSAGES}


async def ask(fleet, **fields):
    return await fleet.client.chat.completions.create(
        **{"model": MODEL_ID, "messages": MESSAGES, **fields}
    )


async def test_bad_fields_are_all_reported(start_fleet) -> None:
    fleet = await start_fleet()
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(fleet, temperature=3, extra_body={"presence_penalty": 3, "top_k": -5})
    assert caught.value.param == "temperature"
    for field in ("temperature", "presence_penalty", "top_k"):
        assert field in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(fleet, max_tokens=100_000)
    assert caught.value.code == "context_length_exceeded"


async def test_an_image_is_refused_with_its_path(start_fleet) -> None:
    fleet = await start_fleet()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "see"}, image]}]
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(fleet, messages=messages)
    assert caught.value.param == "messages[0].content[1]"
    assert "has no vision tower" in caught.value.message


async def test_an_unknown_model_is_not_found(start_fleet) -> None:
    fleet = await start_fleet()
    with pytest.raises(openai.NotFoundError) as caught:
        await ask(fleet, model="nope")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        await fleet.client.models.retrieve("nope")
    assert [m.id async for m in fleet.client.models.list()] == [MODEL_ID]


async def test_keys_are_required_once_set(start_fleet) -> None:
    fleet = await start_fleet(api_keys="team:secret-1,secret-2")
    fleet.say("Hello")
    with pytest.raises(openai.AuthenticationError):
        await ask(fleet)
    answer = await fleet.client.with_options(api_key="secret-1").chat.completions.create(**BODY)
    assert answer.choices[0].message.content == "Hello"
    await fleet.client.with_options(api_key="secret-2").chat.completions.create(**BODY)
    spaces = {g.cache_namespace for g in fleet.backend.submitted}
    assert len(spaces) == 2


async def test_too_many_at_once_is_a_rate_limit(start_fleet) -> None:
    fleet = await start_fleet(max_concurrent_requests=1)
    fleet.backend.play = never
    first = asyncio.create_task(ask(fleet))
    await until(lambda: fleet.backend.submitted)
    with pytest.raises(openai.RateLimitError) as caught:
        await ask(fleet)
    assert int(caught.value.response.headers["retry-after"]) >= 1
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_an_oversized_body_is_refused(start_fleet) -> None:
    fleet = await start_fleet(max_body_bytes=2000)
    with pytest.raises(openai.APIStatusError) as caught:
        await ask(fleet, messages=[{"role": "user", "content": "x" * 5000}])
    assert caught.value.status_code == 413


async def test_a_router_without_room_is_503_with_retry_after(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.backend.submit_error = NoCapacity("the queue is full", retry_after_s=7)
    with pytest.raises(openai.APIStatusError) as caught:
        await ask(fleet)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"] == "7"
    assert fleet.recipe.service.num_active == 0


async def test_a_failed_generation_is_an_error_before_and_inside_a_stream(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.backend.play = lambda _g: Playback([], error=Unavailable("decode is gone"))
    for stream in (False, True):
        with pytest.raises(openai.APIStatusError) as caught:
            await ask(fleet, stream=stream)
        assert caught.value.status_code == 503
    tokens = [[t] for t in fleet.tokens("half an")]
    fleet.backend.play = lambda _g: Playback(
        tokens, pause_s=0.05, error=Unavailable("decode is gone")
    )
    text = ""
    with pytest.raises(openai.APIError, match="decode is gone"):
        async for chunk in await ask(fleet, stream=True):
            text += chunk.choices[0].delta.content or ""
    assert text == "half an"


async def test_deadline_and_queue_time_end_a_request(start_fleet) -> None:
    fleet = await start_fleet(request_timeout_s=0.5)
    fleet.backend.play = never
    with pytest.raises(openai.APIStatusError) as caught:
        await ask(fleet)
    assert caught.value.status_code == 504
    await until(lambda: fleet.backend.cancels and not fleet.recipe.service.num_active)
    assert [c.reason for _, c in fleet.backend.cancels] == ["timeout"]


async def test_no_worker_in_time_is_408(start_fleet) -> None:
    fleet = await start_fleet(queue_timeout_s=0.3, keepalive_s=0.1)
    fleet.backend.play = never
    with pytest.raises(openai.APIStatusError) as caught:
        await ask(fleet)
    assert caught.value.status_code == 408


async def _read_all(url: str, body: dict) -> None:
    async with (
        httpx.AsyncClient(timeout=None) as client,
        client.stream("POST", f"{url}/v1/chat/completions", json=body) as response,
    ):
        async for _ in response.aiter_bytes():
            pass


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_client_that_leaves_cancels(start_fleet, stream: bool, has_begun: bool) -> None:
    fleet = await start_fleet()
    tokens = [[t] for t in fleet.tokens("Hello, world! " * 500)]
    fleet.backend.play = (lambda _g: Playback(tokens, pause_s=0.05)) if has_begun else never
    client = asyncio.create_task(_read_all(fleet.gateway.url, {**BODY, "stream": stream}))
    await until(lambda: fleet.backend.submitted)
    await until(lambda: not has_begun or fleet.backend.num_played > 2)
    assert fleet.recipe.service.num_active == 1
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)
    await until(lambda: fleet.backend.cancels)
    assert fleet.backend.cancels[0][1].reason == "client_gone"
    await until(lambda: not fleet.recipe.service.num_active)
    await until(lambda: not fleet.gateway.service.admission.num_active)


async def test_a_client_that_does_not_read_is_cut_off(start_fleet) -> None:
    fleet = await start_fleet(max_stream_buffer_bytes=20_000, slow_client_s=0.1)
    tokens = [fleet.tokens("Hello, world! " * 500)] * 3000
    fleet.backend.play = lambda _g: Playback(tokens)
    _reader, writer = await _send_and_do_not_read(fleet.gateway.url, {"stop": ["never seen"]})
    await until(lambda: fleet.backend.cancels)
    assert fleet.backend.cancels[0][1].reason == "slow_client"
    await until(lambda: not fleet.gateway.service.admission.num_active)
    writer.close()


async def test_a_stream_that_is_not_read_any_more_ends_at_its_deadline(
    start_fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_answer, "LAST_FRAMES_TIMEOUT_S", 0.2)
    fleet = await start_fleet(request_timeout_s=1)
    fleet.backend.play = lambda _g: Playback([fleet.tokens("Hello, world! " * 500)] * 400)
    _reader, writer = await _send_and_do_not_read(fleet.gateway.url, {})
    await until(lambda: fleet.backend.cancels)
    await until(lambda: not any("run_asgi" in repr(task) for task in asyncio.all_tasks()))
    assert [cancel.reason for _, cancel in fleet.backend.cancels] == ["timeout"]
    writer.close()


async def test_a_whole_answer_that_is_not_read_is_dropped(
    start_fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STALLED_CLIENT_S", 1)
    fleet = await start_fleet()
    fleet.backend.play = lambda _g: Playback([fleet.tokens("Hello, world! " * 500)] * 400)
    reader, writer = await _send_and_do_not_read(fleet.gateway.url, {"stream": False})
    await until(lambda: fleet.backend.submitted)
    await until(lambda: not fleet.gateway.service.admission.num_active)
    await asyncio.sleep(2.5)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1 << 21)
    writer.close()


async def test_a_fleet_faster_than_its_client_cuts_nobody_off(start_fleet) -> None:
    fleet = await start_fleet()
    part = "Hello, world! " * 65
    fleet.backend.play = lambda _g: Playback([fleet.tokens(part)] * 100)
    body = {"model": MODEL_ID, "input": "hi", "store": False, "stream": True}
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        answer = await client.post("/v1/responses", json=body)
    assert len(answer.content) > 2 << 20
    completed = json.loads(answer.text.rsplit("data: ", 1)[-1])["response"]
    assert completed["output"][0]["content"][0]["text"] == part * 100
    assert not fleet.backend.cancels


async def test_a_whole_answer_beyond_the_bound_is_refused(start_fleet) -> None:
    fleet = await start_fleet(max_answer_bytes=5000)
    fleet.say("Hello, world! " * 500, per_delta=50)
    with pytest.raises(openai.BadRequestError, match="have it streamed"):
        await ask(fleet, stream=False)
    assert fleet.gateway.service.admission.num_active == 0


async def _send_and_do_not_read(
    url: str, fields: dict[str, object]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    plug = socket.socket()
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plug.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plug, ("127.0.0.1", int(url.rpartition(":")[2])))
    reader, writer = await asyncio.open_connection(sock=plug, limit=1024)
    body = json.dumps({**BODY, "stream": True, **fields}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def test_a_broker_that_is_away_is_503_and_its_return_is_noticed(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.gateway.ctx.bus.outage_s = 0.5
    fleet.say("Hello")
    await fleet.nats.kill()
    with pytest.raises(openai.APIStatusError) as caught:
        await soon(ask(fleet))
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        assert "nats" in (await client.get("/ready")).json()["missing"]
    await fleet.nats.start()
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                answer = await ask(fleet)
                break
            except openai.APIStatusError:
                await asyncio.sleep(0.1)
    assert answer.choices[0].message.content == "Hello"


async def test_an_absent_service_is_503(start_fleet) -> None:
    fleet = await start_fleet(absent_timeout_s=0.3)
    await fleet.recipe.ctx.bus.stop_shared()
    with pytest.raises(openai.APIStatusError) as caught:
        await ask(fleet)
    assert caught.value.status_code == 503


async def test_a_draining_gateway_finishes_streams_and_refuses_new_ones(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say("Hello, world! How are you today?", hold_s=0.5)
    running = asyncio.create_task(ask(fleet))
    await until(lambda: fleet.backend.submitted)
    drain = asyncio.create_task(fleet.gateway.service.drain(WAIT_S))
    await asyncio.sleep(0)  # it has begun
    with pytest.raises(openai.APIStatusError) as caught:
        await ask(fleet)
    assert caught.value.status_code == 503
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/live")).status_code == 200
    assert (await running).choices[0].message.content == "Hello, world! How are you today?"
    await soon(drain)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_outlasts_the_drain_ends_with_an_error(
    start_fleet, stream: bool
) -> None:
    fleet = await start_fleet()
    text = "Hello, world! " * 200
    fleet.say(text, pause_s=0.05)
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        asking = asyncio.create_task(
            client.post("/v1/chat/completions", json={**BODY, "stream": stream})
        )
        await until(lambda: fleet.backend.num_played > 2)
        await soon(fleet.gateway.service.drain(0.0))
        answer = await soon(asking)
    if stream:
        *_, error, done, end = answer.text.split("\n\n")
        assert (answer.status_code, done, end) == (200, "data: [DONE]", "")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "draining"
    else:
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
    await until(lambda: fleet.backend.cancels)
    assert [c.reason for _, c in fleet.backend.cancels] == ["shutdown"]


async def test_our_own_bug_in_one_answer_ends_that_answer_only(start_fleet, monkeypatch) -> None:
    fleet = await start_fleet()
    good = AnswerReader.feed

    def feed(self, token_ids, logprobs=()):
        if token_ids[0] == bad:
            raise KeyError("a bug")
        return good(self, token_ids, logprobs)

    bad = fleet.tokens("!")[0]
    monkeypatch.setattr(AnswerReader, "feed", feed)
    fleet.say("Hello", hold_s=0.5)
    fine = asyncio.create_task(ask(fleet))
    await until(lambda: fleet.backend.submitted)
    fleet.say("!")
    with pytest.raises(openai.InternalServerError) as caught:
        await ask(fleet)
    assert "a bug" not in caught.value.message
    assert (await fine).choices[0].message.content == "Hello"
    assert fleet.recipe.service.num_active == 0
