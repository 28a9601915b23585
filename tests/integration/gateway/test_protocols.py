"""Every route through one gateway: answers, errors, ids, metrics and spans of each family."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import openai
import pytest
from anthropic import AsyncAnthropic
from pydantic import BaseModel
from rorqual_runtime.settings import RuntimeSettings

from tests.integration.gateway.conftest import never
from tests.support.chat_model_dir import MODEL_ID
from tests.support.stub_backend import Playback
from tests.support.waiting import WAIT_S, until

USER = [{"role": "user", "content": "Hello"}]
CHAT = {"model": MODEL_ID, "messages": USER}
MESSAGE = {**CHAT, "max_tokens": 9}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def http(fleet) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S)


async def test_completions_through_the_real_client(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say("Hello, world!", logprobs=True)
    answer = await fleet.client.completions.create(model=MODEL_ID, prompt="Say it", logprobs=1)
    assert answer.choices[0].text == "Hello, world!"
    assert "".join(answer.choices[0].logprobs.tokens) == "Hello, world!"
    stream = await fleet.client.completions.create(model=MODEL_ID, prompt="Say it", stream=True)
    assert "".join([c.choices[0].text async for c in stream]) == "Hello, world!"


async def test_each_prompt_of_a_list_is_generated_by_itself(start_fleet) -> None:
    fleet = await start_fleet()
    texts = ["first", "second one"]
    fleet.backend.play = lambda g: Playback([fleet.tokens(texts[g.choice_index])])
    answer = await fleet.client.completions.create(model=MODEL_ID, prompt=["a", "b b b b"])
    assert [c.text for c in answer.choices] == texts
    lengths = [g.num_prompt_tokens for g in fleet.backend.submitted]
    prompts = [len(g.prompt.inline) // 4 for g in fleet.backend.submitted]
    assert lengths == prompts
    assert answer.usage.prompt_tokens == sum(lengths)


async def test_questions_without_a_generation_reach_no_router(start_fleet) -> None:
    fleet = await start_fleet()
    async with http(fleet) as client:
        tokens = await client.post("/tokenize", json={"prompt": "Hello, world!"})
        text = await client.post("/detokenize", json={"tokens": tokens.json()["tokens"]})
        counted = await client.post("/v1/messages/count_tokens", json=CHAT)
        long = await client.post("/tokenize", json={"prompt": "word " * 60_000})
    assert text.json() == {"prompt": "Hello, world!"}
    assert counted.json()["input_tokens"] > 0
    assert long.json()["count"] == len(long.json()["tokens"]) > 50_000
    assert fleet.backend.submitted == []
    assert fleet.recipe.service.num_active == 0


async def test_a_key_in_either_header_opens_every_family(start_fleet) -> None:
    fleet = await start_fleet(api_keys="secret")
    fleet.say("Hello")
    client = AsyncAnthropic(base_url=fleet.gateway.url, api_key="secret", max_retries=0)
    async with client:
        message = await client.messages.create(model=MODEL_ID, max_tokens=9, messages=USER)
        assert message.content[0].text == "Hello"
        assert message._request_id
        assert [model.id async for model in client.models.list()] == [MODEL_ID]
    async with http(fleet) as bare:
        refused = await bare.post("/v1/messages", json=MESSAGE)
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
        assert refused.headers["request-id"] == refused.headers["x-request-id"]
        refused = await bare.post("/v1/responses", json={"model": MODEL_ID, "input": "a"})
        assert refused.json()["error"]["code"] == "invalid_api_key"


async def test_the_edges_own_errors_have_each_familys_shape(start_fleet) -> None:
    fleet = await start_fleet(max_body_bytes=200, max_concurrent_requests=1, queue_timeout_s=3)
    async with http(fleet) as client:
        large = {**MESSAGE, "system": "x" * 300}
        too_large = await client.post("/v1/messages", json=large)
        lost = await client.get("/v1/messages/nothing")
        fleet.backend.play = never
        first = asyncio.create_task(client.post("/v1/messages", json=MESSAGE))
        await until(lambda: fleet.backend.submitted)
        busy = await client.post("/v1/messages", json=MESSAGE)
        queued = await first
    for answer, status, kind in (
        (too_large, 413, "request_too_large"),
        (lost, 404, "not_found_error"),
        (busy, 429, "rate_limit_error"),
        (queued, 408, "timeout_error"),
    ):
        body = answer.json()
        assert (answer.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)


@pytest.mark.parametrize(
    ("path", "body", "last_event"),
    [
        ("/v1/messages", MESSAGE, "error"),
        ("/v1/responses", {"model": MODEL_ID, "input": "Hello"}, "error"),
        ("/v1/chat/completions", CHAT, None),
    ],
)
async def test_a_begun_stream_ends_in_its_protocol_when_recipe_is_lost(
    start_fleet, path: str, body: dict, last_event: str | None
) -> None:
    fleet = await start_fleet(lost_after_s=1.0, silence_probe_s=0.2)
    tokens = [[t] for t in fleet.tokens("Hello, world! " * 100)]
    fleet.backend.play = lambda _g: Playback(tokens, pause_s=0.02)
    text = ""
    async with (
        http(fleet) as client,
        client.stream("POST", path, json={**body, "stream": True}) as answer,
    ):
        async for part in answer.aiter_text():
            if not text:
                await fleet.recipe.ctx.bus.close()
            text += part
    frames = text.strip().split("\n\n")
    if last_event is None:
        assert frames[-1] == "data: [DONE]"
        assert json.loads(frames[-2].removeprefix("data: "))["error"]["code"] == "unavailable"
        return
    name, data = frames[-1].split("\n")
    assert name == f"event: {last_event}"
    event = json.loads(data.removeprefix("data: "))
    if path == "/v1/responses":
        assert event["sequence_number"] == len(frames) - 1


async def test_an_idle_messages_stream_gets_pings(start_fleet) -> None:
    fleet = await start_fleet(keepalive_s=0.1)
    fleet.say("Hello", hold_s=1.0)
    async with http(fleet) as client:
        answer = await client.post("/v1/messages", json={**MESSAGE, "stream": True})
    assert answer.text.startswith('event: ping\ndata: {"type": "ping"}\n\n')
    assert answer.text.rstrip().endswith('{"type":"message_stop"}')


async def test_an_aborted_stream_counts_its_tokens(
    start_fleet, runtime_settings: RuntimeSettings
) -> None:
    fleet = await start_fleet()
    tokens = [[t] for t in fleet.tokens("Hello, world! " * 100)]
    fleet.backend.play = lambda _g: Playback(tokens, pause_s=0.01, num_cached_tokens=4)
    stream = await fleet.client.chat.completions.create(**CHAT, stream=True)
    seen = 0
    async for _ in stream:
        seen += 1
        if seen == 20:
            break
    await stream.close()
    attributes = (await _span(runtime_settings.home, "chat "))["attributes"]
    assert attributes["gen_ai.usage.output_tokens"] >= 19
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 4
    async with http(fleet) as client:
        metrics = (await client.get("/metrics")).text
    line = next(x for x in metrics.splitlines() if x.startswith("vllm:generation_tokens_total"))
    assert float(line.split()[-1]) == attributes["gen_ai.usage.output_tokens"]
    operation = f'gen_ai_operation_name="chat",gen_ai_request_model="{MODEL_ID}"'
    name = "gen_ai_server_request_duration_seconds_count"
    assert f'{name}{{error_type="client_gone",{operation}}} 1.0' in metrics


async def _span(home: Path, prefix: str) -> dict:
    async with asyncio.timeout(WAIT_S):
        while True:
            for path in (home / "traces").glob("*.jsonl"):
                for line in path.read_text().splitlines():
                    span = json.loads(line)
                    if span["name"].startswith(prefix):
                        return span
            await asyncio.sleep(0.1)


async def test_tool_calls_through_the_real_client(start_fleet) -> None:
    fleet = await start_fleet()
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "é 1"}}\n</tool_call>'
    fleet.say(call, per_delta=3)
    answer = await fleet.client.chat.completions.create(**CHAT, tools=[TOOL])
    made = answer.choices[0].message.tool_calls[0]
    assert json.loads(made.function.arguments) == {"a": "é 1"}
    assert answer.choices[0].finish_reason == "tool_calls"
    fleet.say("Done.")
    history = [
        *USER,
        answer.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": made.id, "content": "42"},
    ]
    answer = await fleet.client.chat.completions.create(
        model=MODEL_ID, messages=history, tools=[TOOL]
    )
    assert answer.choices[0].message.content == "Done."
    with pytest.raises(openai.BadRequestError) as caught:
        await fleet.client.chat.completions.create(model=MODEL_ID, messages=history[:2])
    assert caught.value.param == "messages[1].tool_calls[0].id"


async def test_the_clients_own_stream_reader_puts_answers_together(start_fleet) -> None:
    fleet = await start_fleet()
    call = 'Well\n<tool_call>\n{"name": "f", "arguments": {"a": [1, 2]}}\n</tool_call>'
    fleet.say(call, per_delta=2, logprobs=True)
    options = {"stream_options": {"include_usage": True}, "logprobs": True}
    async with fleet.client.chat.completions.stream(**CHAT, tools=[TOOL], **options) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert {"chunk", "content.delta", "tool_calls.function.arguments.done"} <= set(kinds)
    message = final.choices[0].message
    assert message.content.strip() == "Well"
    assert json.loads(message.tool_calls[0].function.arguments) == {"a": [1, 2]}
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage.completion_tokens == len(fleet.tokens(call))
    assert final.choices[0].logprobs.content


async def test_the_clients_own_parser_reads_shaped_answers(start_fleet) -> None:
    class Person(BaseModel):
        name: str
        age: int

    fleet = await start_fleet()
    fleet.say('{"name": "Ada", "age": 36}')
    answer = await fleet.client.chat.completions.parse(**CHAT, response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Ada", age=36)
    assert fleet.backend.submitted[0].constraint.source
