"""`kill -9` of a recipe in the middle of answers: their clients see the answers of a calm day."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.answers import ask, told
from tests.e2e.chat import MODEL
from tests.support.fleet import RunningFleet, running_fleet
from tests.support.waiting import WAIT_S, soon

QUESTION = [{"role": "user", "content": "Tell me a long story about a river and a mountain."}]
COMMON: dict[str, Any] = {"model": MODEL, "temperature": 0}
CHAT = {**COMMON, "messages": QUESTION, "ignore_eos": True, "max_tokens": 140}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat/completions", {**CHAT, "stream": True}),
    "chat, two choices": ("chat/completions", {**CHAT, "stream": True, "n": 2}),
    "chat, logprobs": (
        "chat/completions",
        {**CHAT, "stream": True, "logprobs": True, "top_logprobs": 20},
    ),
    "chat, stop string": ("chat/completions", {**CHAT, "stream": True, "stop": [" zebra"]}),
    "chat, in one piece": ("chat/completions", {**CHAT, "n": 2}),
    "responses": (
        "responses",
        {**COMMON, "input": QUESTION, "max_output_tokens": 140, "stream": True},
    ),
    "responses, in one piece": (
        "responses",
        {**COMMON, "input": QUESTION, "max_output_tokens": 140},
    ),
    "messages": ("messages", {**COMMON, "messages": QUESTION, "max_tokens": 140, "stream": True}),
    "completions": (
        "completions",
        {**COMMON, "prompt": "A river", "ignore_eos": True, "max_tokens": 140, "stream": True},
    ),
}


@pytest.fixture(scope="module")
def two_recipes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    home: Path = tmp_path_factory.mktemp("fleet")
    with running_fleet(home, recipe=2) as running:
        yield running


async def _ask_all(running: RunningFleet, kill: str | None = None) -> dict[str, list[Any]]:
    """All requests at once; kill: a recipe that dies once every stream has begun."""
    begun = {name: asyncio.Event() for name in REQUESTS}
    tasks = {
        name: asyncio.create_task(ask(running.base_url, path, body, begun[name]))
        for name, (path, body) in REQUESTS.items()
    }
    if kill is not None:
        streams = [begun[name] for name, (_, body) in REQUESTS.items() if "stream" in body]
        await soon(asyncio.gather(*(event.wait() for event in streams)), 120.0)
        end_s = time.monotonic() + WAIT_S
        while kill not in (loads := await asyncio.to_thread(running.loads)):
            assert time.monotonic() < end_s, f"{kill} does not report"
        assert loads[kill].num_active_requests > 0, "nothing was under way there"
        await asyncio.to_thread(running.kill, kill)
    return {name: await task for name, task in tasks.items()}


async def _busiest_recipe(running: RunningFleet) -> str:
    """The instance with the most answers, once it has some."""
    async with asyncio.timeout(30):
        while True:
            loads = await asyncio.to_thread(running.loads)
            counts = {n: r.num_active_requests for n, r in loads.items() if n.startswith("recipe")}
            busiest = max(counts, key=lambda name: counts[name])
            if counts[busiest] > 0:
                return busiest


async def test_answers_survive_each_of_two_recipes(two_recipes: RunningFleet) -> None:
    running = two_recipes
    calm = {name: told(events) for name, events in (await _ask_all(running)).items()}
    for victim in ("recipe-1", "recipe-2"):
        answers = {name: told(e) for name, e in (await _ask_all(running, victim)).items()}
        for name in REQUESTS:
            for what, expected in zip(answers[name], calm[name], strict=True):
                assert what == expected, name
        await asyncio.to_thread(running.wait_idle)
        assert "answer taken over" in running.log("recipe-1") + running.log("recipe-2")
        await asyncio.to_thread(running.restart, victim)
        await asyncio.to_thread(running.wait_ready, victim)


async def test_prompts_under_way_survive_too(two_recipes: RunningFleet) -> None:
    """Nobody has seen a token yet when the recipe dies: prompts wait, or are being computed."""
    running = two_recipes
    texts = [f"{number}. " + "Tell me about the river. " * 250 for number in range(6)]
    bodies = [
        {**CHAT, "messages": [{"role": "user", "content": text}], "max_tokens": 6, "stream": True}
        for text in texts
    ]

    async def ask_all() -> list[list[Any]]:
        asked = (ask(running.base_url, "chat/completions", b, asyncio.Event()) for b in bodies)
        return list(await asyncio.gather(*asked))

    task = asyncio.create_task(ask_all())
    busy = await _busiest_recipe(running)
    await asyncio.to_thread(running.kill, busy)
    answers = [told(events) for events in await task]
    await asyncio.to_thread(running.restart, busy)
    await asyncio.to_thread(running.wait_ready, busy)
    assert answers == [told(events) for events in await ask_all()]
    await asyncio.to_thread(running.wait_idle)


async def test_an_answer_survives_a_recipe_that_is_told_to_stop(two_recipes: RunningFleet) -> None:
    """It outlasts the drain: another instance goes on."""
    running = two_recipes
    body = {**CHAT, "stream": True, "max_tokens": 600}
    calm = await ask(running.base_url, "chat/completions", body, asyncio.Event())
    begun = asyncio.Event()
    task = asyncio.create_task(ask(running.base_url, "chat/completions", body, begun))
    await begun.wait()
    busy = await _busiest_recipe(running)
    await asyncio.to_thread(running.kill, busy, signal.SIGTERM)
    assert told(await task) == told(calm)
    assert busy not in running.pids, "it was still there at the end: nothing was taken over"
    await asyncio.to_thread(running.restart, busy)
    await asyncio.to_thread(running.wait_ready, busy)


async def test_a_recipe_that_hangs_and_comes_back_disturbs_nobody(
    two_recipes: RunningFleet,
) -> None:
    running = two_recipes
    body = {**CHAT, "stream": True, "max_tokens": 200}
    calm = told(await ask(running.base_url, "chat/completions", body, asyncio.Event()))
    begun = [asyncio.Event() for _ in range(4)]
    tasks = [
        asyncio.create_task(ask(running.base_url, "chat/completions", body, event))
        for event in begun
    ]
    await asyncio.gather(*(event.wait() for event in begun))
    busy = await _busiest_recipe(running)
    await asyncio.to_thread(running.kill, busy, signal.SIGSTOP)
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        await asyncio.to_thread(running.kill, busy, signal.SIGCONT)
    for events in answers:
        assert told(events) == calm
    await asyncio.to_thread(running.wait_idle)
