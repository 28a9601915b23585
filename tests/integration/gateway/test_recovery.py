"""Streams survive a broker restart and lost messages; a dead recipe is an error, not silence."""

from __future__ import annotations

import asyncio

import openai
import pytest
from rorqual_gateway.sinks import MAX_EARLY
from rorqual_runtime.errors import Draining

from tests.support.chat_model_dir import MODEL_ID
from tests.support.stub_backend import Playback
from tests.support.waiting import WAIT_S, soon, until

BODY = {"model": MODEL_ID, "messages": [{"role": "user", "content": "Hello"}]}
TEXT = "The quick brown fox jumps over the lazy dog. " * 8


@pytest.mark.parametrize("stream", [False, True])
async def test_a_broker_restart_loses_nothing(start_fleet, stream: bool) -> None:
    fleet = await start_fleet(silence_probe_s=0.3)
    fleet.say(TEXT, pause_s=0.02)
    request = asyncio.create_task(fleet.client.chat.completions.create(**BODY, stream=stream))
    await until(lambda: fleet.backend.num_played > 20)
    await fleet.nats.restart()
    answer = await soon(request)
    if stream:
        text = "".join([c.choices[0].delta.content or "" async for c in answer])
    else:
        text = answer.choices[0].message.content
    assert text == TEXT


async def test_a_broker_that_is_away_for_longer_than_answers_are_waited_for_loses_nothing(
    start_fleet,
) -> None:
    fleet = await start_fleet(silence_probe_s=0.1, lost_after_s=0.5)
    fleet.say(TEXT, pause_s=0.02)
    request = asyncio.create_task(fleet.client.chat.completions.create(**BODY))
    await until(lambda: fleet.backend.num_played > 20)
    await fleet.nats.kill()
    await asyncio.sleep(1.0)  # the outage, shorter than the backend waits to publish
    assert not request.done()
    await fleet.nats.start()
    assert (await soon(request)).choices[0].message.content == TEXT


async def test_lost_events_are_fetched_again(start_fleet) -> None:
    fleet = await start_fleet(silence_probe_s=0.2)
    fleet.say(TEXT, pause_s=0.01)
    original = fleet.recipe.service._publisher.send
    count = 0

    async def lossy(outbox) -> None:
        nonlocal count
        count += 1
        if count % 3:
            await original(outbox)

    fleet.recipe.service._publisher.send = lossy
    stream = await fleet.client.chat.completions.create(**BODY, stream=True)
    text = "".join([c.choices[0].delta.content or "" async for c in stream])
    assert text == TEXT


async def test_tokens_lost_in_front_of_a_burst_are_fetched_again(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say(TEXT * 4, lost=frozenset({1}))
    answer = await fleet.client.chat.completions.create(**BODY)
    assert answer.choices[0].message.content == TEXT * 4


async def test_events_lost_in_front_of_a_burst_are_fetched_again(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say(TEXT * 4)
    original = fleet.recipe.service._publisher.send
    sent: list[object] = []

    async def lossy(outbox) -> None:
        sent.append(outbox)
        if len(sent) != 2:
            await original(outbox)

    fleet.recipe.service._publisher.send = lossy
    stream = await fleet.client.chat.completions.create(**BODY, stream=True)
    text = "".join([c.choices[0].delta.content or "" async for c in stream])
    assert text == TEXT * 4
    assert len(sent) > MAX_EARLY + 2


async def test_a_recipe_that_forgot_the_stream_begins_it_again(start_fleet) -> None:
    fleet = await start_fleet(silence_probe_s=0.2)
    fleet.say(TEXT, pause_s=0.02)
    stream = await fleet.client.chat.completions.create(**BODY, stream=True)
    fleet.recipe.service._streams._streams.clear()
    assert "".join([c.choices[0].delta.content or "" async for c in stream]) == TEXT
    assert len(fleet.backend.submitted) == 1


async def test_an_answer_whose_body_was_not_kept_ends_with_its_stream(start_fleet) -> None:
    fleet = await start_fleet(silence_probe_s=0.2, max_kept_body_bytes=20)
    fleet.say(TEXT, pause_s=0.05)
    stream = await fleet.client.chat.completions.create(**BODY, stream=True)
    fleet.recipe.service._streams._streams.clear()
    with pytest.raises(openai.APIError, match="lost"):
        async for _ in stream:
            pass
    await until(lambda: fleet.backend.cancels)
    assert [c.reason for _, c in fleet.backend.cancels] == ["error"]


async def test_a_recipe_that_died_is_noticed(start_fleet) -> None:
    fleet = await start_fleet(silence_probe_s=0.2, lost_after_s=1.0)
    fleet.say(TEXT, pause_s=0.05)
    stream = await fleet.client.chat.completions.create(**BODY, stream=True)
    await fleet.recipe.ctx.bus.close()
    with pytest.raises(openai.APIError, match="lost"):
        async with asyncio.timeout(WAIT_S):
            async for _ in stream:
                pass


async def test_answers_larger_than_a_bus_message_arrive_whole(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say("Hello, world! " * 200, per_delta=500, logprobs=True)
    answer = await fleet.client.chat.completions.create(
        **BODY, logprobs=True, top_logprobs=2, n=8, max_tokens=2000
    )
    assert len(answer.model_dump_json()) > 1 << 20
    assert all(c.message.content == "Hello, world! " * 200 for c in answer.choices)


async def test_a_decode_that_refuses_before_its_first_token_is_not_the_end(start_fleet) -> None:
    fleet = await start_fleet()
    tokens = [[token] for token in fleet.tokens("Hello")]
    answers = iter([Playback([], error=Draining("goes")), Playback(tokens)])
    fleet.backend.play = lambda _generation: next(answers)
    reply = await fleet.client.chat.completions.create(**BODY)
    assert reply.choices[0].message.content == "Hello"
    assert [generation.run > 0 for generation in fleet.backend.submitted] == [False, True]
