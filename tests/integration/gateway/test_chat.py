"""Chat completions through the real client library, gateway, recipe and broker."""

from __future__ import annotations

from tests.integration.gateway.conftest import ApiFleet
from tests.support.chat_model_dir import MODEL_ID

MESSAGES = [{"role": "user", "content": "Hello"}]
TEXT = "The quick brown fox — naïve café 👩‍👩‍👧‍👦 深度求索。"


async def collect(fleet: ApiFleet, **fields: object) -> tuple[list, str]:
    stream = await fleet.client.chat.completions.create(
        model=MODEL_ID, messages=MESSAGES, stream=True, **fields
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    return chunks, text


async def test_a_plain_answer_is_one_completion(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say(TEXT, num_cached_tokens=3)
    answer = await fleet.client.chat.completions.create(model=MODEL_ID, messages=MESSAGES)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint == "fp_0123456789ab"
    assert answer.usage.completion_tokens == len(fleet.tokens(TEXT))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


async def test_a_stream_has_role_content_finish_and_usage(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say(TEXT)
    chunks, text = await collect(fleet, stream_options={"include_usage": True})
    assert text == TEXT
    assert "\ufffd" not in "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(fleet.tokens(TEXT))
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_stop_string_split_over_tokens_ends_the_answer(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say("one two three four", pause_s=0.02)
    _, text = await collect(fleet, stop=["o thr"])
    assert text == "one tw"
    answer = await fleet.client.chat.completions.create(
        model=MODEL_ID, messages=MESSAGES, stop="o thr"
    )
    assert answer.choices[0].message.content == "one tw"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens < len(fleet.tokens("one two three four"))
    reasons = {(c.reason, c.choice_index) for _, c in fleet.backend.cancels}
    assert reasons == {("stop_sequence", 0)}


async def test_two_choices_are_two_generations_with_their_own_index(start_fleet) -> None:
    fleet = await start_fleet()
    texts = ["first answer", "a second, longer answer"]
    from tests.support.stub_backend import Playback

    fleet.backend.play = lambda g: Playback([[t] for t in fleet.tokens(texts[g.choice_index])])
    answer = await fleet.client.chat.completions.create(
        model=MODEL_ID, messages=MESSAGES, n=2, seed=7
    )
    assert [c.message.content for c in answer.choices] == texts
    assert [c.index for c in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == sum(len(fleet.tokens(t)) for t in texts)
    assert [g.sampling.seed for g in fleet.backend.submitted] == [7, 8]
    stream = await fleet.client.chat.completions.create(
        model=MODEL_ID, messages=MESSAGES, n=2, stream=True
    )
    streamed = ["", ""]
    async for chunk in stream:
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


async def test_logprobs_name_every_token(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say("Hello, world!", logprobs=True)
    answer = await fleet.client.chat.completions.create(
        model=MODEL_ID, messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == "Hello, world!"
    assert bytes(b for entry in content for b in entry.bytes) == b"Hello, world!"
    assert all(len(entry.top_logprobs) == 2 for entry in content)


async def test_missed_tokens_are_fetched_from_decode(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say(TEXT, lost=frozenset({1, 2, 5}))
    _, text = await collect(fleet)
    assert text == TEXT
    assert fleet.backend.resends


async def test_a_lost_end_is_noticed_by_silence(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say(TEXT, lost=frozenset({len(fleet.tokens(TEXT)) - 1}))
    _, text = await collect(fleet)
    assert text == TEXT


async def test_nothing_is_held_after_an_answer(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say("Hello")
    await collect(fleet)
    assert fleet.recipe.service.num_active == 0
    assert fleet.gateway.service.admission.num_active == 0
