"""The Responses API through the real client: thinking, tools, stored and stateless, errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types.responses import Response
from rorqual_proto.v1 import decode_pb2
from rorqual_runtime.errors import Unavailable
from rorqual_runtime.settings import RuntimeSettings
from tokenizers import Tokenizer

from tests.support.api_services import RunningRecipe, running_gateway, running_recipe
from tests.support.chat_model_dir import MODEL_ID
from tests.support.dsml_model_dir import make_dsml_model_dir
from tests.support.servers import RedisServer, redis_server
from tests.support.stub_backend import Playback, StubBackend, stub_backend

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Rain or shine",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALCULATOR = {"type": "custom", "name": "calc"}
TWO_CALLS = (
    "I need both.</think>Let me look.\n\n<｜DSML｜ calls>\n"
    '<｜DSML｜ invoke name="weather">\n'
    '<｜DSML｜ parameter name="city" string="true">Paris</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n"
    '<｜DSML｜ invoke name="calc">\n'
    '<｜DSML｜ parameter name="input" string="true">1 + 1</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)


@dataclass
class Fleet:
    """Real services around a backend that says what a test wants."""

    client: AsyncOpenAI
    backend: StubBackend
    recipe: RunningRecipe
    redis: RedisServer
    tokenizer: Tokenizer

    def say(self, *answers: str, per_delta: int = 3, **facts: object) -> None:
        """Answers of the next generations, in order; the last one is repeated."""
        left = list(answers)

        def play(_generation: object) -> Playback:
            text = left.pop(0) if len(left) > 1 else left[0]
            ids = self.tokenizer.encode(text, add_special_tokens=False).ids
            deltas = [ids[i : i + per_delta] for i in range(0, len(ids), per_delta)]
            return Playback(deltas or [[]], **facts)  # type: ignore[arg-type]

        self.backend.play = play

    async def create(self, **fields: object) -> Response:
        body = {"model": MODEL_ID, "input": "q", **fields}
        return await self.client.responses.create(**body)  # type: ignore[call-overload,no-any-return]

    async def stream(self, **fields: object) -> list:
        body = {"model": MODEL_ID, "input": "q", "stream": True, **fields}
        stream = await self.client.responses.create(**body)  # type: ignore[call-overload]
        return [event async for event in stream]

    def prompt(self, index: int = -1) -> str:
        ids = memoryview(self.backend.submitted[index].prompt.inline).cast("i").tolist()
        return self.tokenizer.decode(ids, skip_special_tokens=False)


@pytest_asyncio.fixture
async def fleet(runtime_settings: RuntimeSettings, tmp_path: Path) -> AsyncIterator[Fleet]:
    model_dir = make_dsml_model_dir(tmp_path / "model", encoding="deepseek-v4.1")
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server(tmp_path))
        recipe = await stack.enter_async_context(
            running_recipe(runtime_settings, model_dir, redis_url=redis.url)
        )
        backend = await stack.enter_async_context(
            stub_backend(runtime_settings, lambda _generation: Playback([]))
        )
        gateway = await stack.enter_async_context(running_gateway(runtime_settings))
        client = await stack.enter_async_context(
            AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        )
        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        yield Fleet(client, backend, recipe, redis, tokenizer)


def settled(response: Response) -> dict:
    """The response without what two requests never have in common."""
    times = ("created_at", "completed_at")
    members = {name: part for name, part in response.to_dict().items() if name not in times}
    text = json.dumps(members)
    for item in response.output:
        if getattr(item, "call_id", None):
            text = text.replace(item.call_id, "CALL")
    return json.loads(text.replace(response.id.removeprefix("resp_"), "ID"))


async def test_streaming_equals_not_streaming(fleet: Fleet) -> None:
    fleet.say(TWO_CALLS)
    asked = {"tools": [WEATHER, CALCULATOR], "reasoning": {"effort": "high"}}
    whole = await fleet.create(**asked)
    events = await fleet.stream(**asked)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    assert settled(events[-1].response) == settled(whole)
    kinds = [item.type for item in whole.output]
    assert kinds == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert whole.output_text == "Let me look."


async def test_an_agents_loop_in_which_the_client_carries_everything(fleet: Fleet) -> None:
    fleet.say(TWO_CALLS, "Enough.</think>Rain, and 2.")
    asked = {"tools": [WEATHER, CALCULATOR], "reasoning": {"effort": "high"}, "store": False}
    asked["include"] = ["reasoning.encrypted_content"]
    first = await fleet.create(**asked)
    history: list = [{"role": "user", "content": "q"}]
    for item in first.output:
        carried = item.to_dict()
        if item.type == "reasoning":
            del carried["content"]  # sealed reasoning alone must be enough
        history.append(carried)
        if item.type == "function_call":
            assert json.loads(item.arguments) == {"city": "Paris"}
            output = {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
        elif item.type == "custom_tool_call":
            assert item.input == "1 + 1"
            output = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "2"}
        else:
            continue
        history.append(output)
    calls = [item for item in history if str(item.get("type")).endswith("_call")]
    outputs = [item for item in history if str(item.get("type")).endswith("_output")]
    rest = [item for item in history if item not in (*calls, *outputs)]
    second = await fleet.create(**asked, input=[*rest, *calls, *outputs])
    assert second.output_text == "Rain, and 2."
    assert second.status == "completed"
    assert fleet.prompt().startswith(fleet.prompt(0) + TWO_CALLS)


async def test_an_agents_loop_in_which_the_service_remembers(fleet: Fleet) -> None:
    fleet.say(TWO_CALLS, "Enough.</think>Rain, and 2.")
    asked = {"tools": [WEATHER, CALCULATOR], "reasoning": {"effort": "high"}}
    first = await fleet.create(**asked)
    outputs = [
        {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "rain"},
        {"type": "custom_tool_call_output", "call_id": first.output[3].call_id, "output": "2"},
    ]
    second = await fleet.create(**asked, input=outputs, previous_response_id=first.id)
    assert (second.output_text, second.previous_response_id) == ("Rain, and 2.", first.id)
    assert fleet.prompt().startswith(fleet.prompt(0) + TWO_CALLS)
    third = await fleet.stream(**asked, input="Thanks", previous_response_id=second.id)
    assert third[-1].response.output_text == "Rain, and 2."


async def test_stored_responses_are_read_listed_and_deleted(fleet: Fleet) -> None:
    fleet.say("Hm.</think>Blue.")
    kept = await fleet.create(input="Colour?", metadata={"k": "v"})
    read = await fleet.client.responses.retrieve(kept.id)
    assert read.to_dict() == kept.to_dict()
    items = [item async for item in fleet.client.responses.input_items.list(kept.id)]
    assert [item.content[0].text for item in items] == ["Colour?"]
    await fleet.client.responses.delete(kept.id)
    with pytest.raises(openai.NotFoundError):
        await fleet.client.responses.retrieve(kept.id)
    with pytest.raises(openai.BadRequestError) as caught:
        await fleet.create(previous_response_id=kept.id)
    assert (caught.value.param, caught.value.code) == (
        "previous_response_id",
        "previous_response_not_found",
    )


async def test_a_streamed_response_can_be_continued_at_once(fleet: Fleet) -> None:
    fleet.say("Hm.</think>Blue.")
    for _ in range(5):
        events = await fleet.stream()
        again = await fleet.create(previous_response_id=events[-1].response.id)
        assert again.output_text == "Blue."


async def test_any_instance_continues_what_another_has_begun(
    fleet: Fleet, runtime_settings: RuntimeSettings, tmp_path: Path
) -> None:
    fleet.say("Hm.</think>Blue.")
    asked = {"include": ["reasoning.encrypted_content"]}
    async with running_recipe(
        runtime_settings, tmp_path / "model", redis_url=fleet.redis.url
    ) as second:
        response = await fleet.create(**asked)
        for _ in range(12):
            thought = response.output[0].to_dict()
            del thought["content"]
            sealed = [thought, {"role": "user", "content": "go"}]
            response = await fleet.create(**asked, input=sealed, previous_response_id=response.id)
            assert response.output_text == "Blue."
        served = {generation.reply.recipe_id for generation in fleet.backend.submitted}
        assert served == {fleet.recipe.ctx.instance_id, second.ctx.instance_id}


async def test_an_answer_cut_by_length_is_incomplete(fleet: Fleet) -> None:
    fleet.say("Hm.</think>Blu", finish=decode_pb2.FINISH_REASON_LENGTH)
    events = await fleet.stream()
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output[-1].status == "incomplete"


async def test_a_generation_that_fails_in_the_middle(fleet: Fleet) -> None:
    fleet.say("Hm.</think>Blu", error=Unavailable("a worker is gone"), pause_s=0.05)
    events = await fleet.stream()
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message.endswith(": a worker is gone")
    assert events[-1].response.output[-1].content[0].text == "Blu"
    with pytest.raises(openai.InternalServerError):
        await fleet.create()


async def test_logprobs_and_usage(fleet: Fleet) -> None:
    fleet.say("Hm.</think>Blue.", logprobs=True, num_cached_tokens=4)
    response = await fleet.create(top_logprobs=2)
    part = response.output[1].content[0]
    assert "".join(entry.token for entry in part.logprobs) == part.text == "Blue."
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
    assert response.usage.input_tokens_details.cached_tokens == 4
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens


async def test_all_that_is_wrong_is_told_at_once(fleet: Fleet) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await fleet.create(temperature=5, tools=[{"type": "mcp"}], background=True)
    for param in ("temperature", "tools[0].type", "background"):
        assert param in caught.value.message
    assert fleet.backend.submitted == []


async def test_without_redis_answers_are_given_but_not_kept(fleet: Fleet) -> None:
    fleet.say("Hm.</think>Blue.")
    await fleet.redis.kill()
    first = await fleet.create()
    assert first.output_text == "Blue."
    second = await fleet.create()
    assert (second.output_text, second.store) == ("Blue.", False)
    assert any(warning.startswith("store: ") for warning in second.to_dict()["warnings"])
    with pytest.raises(openai.InternalServerError) as caught:
        await fleet.create(previous_response_id=first.id)
    assert caught.value.status_code == 503
