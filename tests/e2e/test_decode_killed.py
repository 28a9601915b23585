"""A decode instance leaves in the middle of answers, in whatever way: their clients see the answers
of a calm day."""

from __future__ import annotations

import asyncio
import signal
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.answers import ask, told
from tests.e2e.chat import MODEL
from tests.support.fleet import RunningFleet, running_fleet
from tests.support.waiting import soon, until

NUM_TOKENS = 90
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 60, "maxLength": 90},
        "items": {"type": "array", "items": {"type": "string"}, "minItems": 4, "maxItems": 8},
    },
    "required": ["title", "items"],
    "additionalProperties": False,
}
SHAPE = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
PENALTIES = {"frequency_penalty": 0.5, "presence_penalty": 0.3, "repetition_penalty": 1.1}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "two choices": {"temperature": 0.8, "seed": 3, "n": 2},
    "scores": {"temperature": 0, "logprobs": True, "top_logprobs": 5},
    "sampled, penalties": {"temperature": 0.9, "seed": 5, **PENALTIES},
    "shape": {"temperature": 0.7, "seed": 7, "response_format": SHAPE, "ignore_eos": False},
    "shape, penalties, scores": {
        "temperature": 0,
        "response_format": SHAPE,
        "ignore_eos": False,
        "logprobs": True,
        **PENALTIES,
    },
    "long prompt": {"temperature": 0, "content": "Tell me about the river and the hill. " * 40},
}
ENV = {
    "RORQUAL_DECODE_DRAFTER": "ngram",
    "RORQUAL_DECODE_GUESS_SCHEDULE": "fixed",
    "RORQUAL_DECODE_DRAIN_GRACE_S": "0",
}


def _body(kind: str) -> dict[str, Any]:
    fields = {"content": "Tell me a long story about a river.", **KINDS[kind]}
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": fields.pop("content")}],
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "stream": True,
        **fields,
    }


@pytest.fixture(scope="module")
def two_decodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    with running_fleet(
        tmp_path_factory.mktemp("fleet"), decode=2, drain_s=30.0, env=ENV
    ) as running:
        yield running


@pytest.fixture(scope="module")
def calm(two_decodes: RunningFleet) -> dict[str, Any]:
    """What is told when nothing happens."""
    return asyncio.run(_all_told(two_decodes, asyncio.Event(), []))


async def _all_told(
    running: RunningFleet, all_begun: asyncio.Event, gaps_s: list[float]
) -> dict[str, Any]:
    begun = {kind: asyncio.Event() for kind in KINDS}
    answers = [
        asyncio.create_task(
            ask(running.base_url, "chat/completions", _body(kind), begun[kind], gaps_s)
        )
        for kind in KINDS
    ]
    await soon(asyncio.gather(*(event.wait() for event in begun.values())), 120.0)
    all_begun.set()
    return {
        kind: told(events)
        for kind, events in zip(KINDS, await asyncio.gather(*answers), strict=True)
    }


async def _disturbed(running: RunningFleet, *signals: signal.Signals) -> tuple[dict[str, Any], str]:
    """What is told when the busier of two instances gets these signals in the middle."""
    all_begun, gaps_s = asyncio.Event(), []
    telling = asyncio.create_task(_all_told(running, all_begun, gaps_s))
    await soon(all_begun.wait(), 120.0)
    loads = await asyncio.to_thread(running.loads)
    counts = {n: r.num_active_requests for n, r in loads.items() if n.startswith("decode")}
    victim = max(counts, key=lambda name: counts[name])
    assert counts[victim] > 0, "nothing was under way there"
    for number in signals:
        await asyncio.to_thread(running.kill, victim, number)
        await asyncio.sleep(0.1)  # whatever it is at then
    answers = await telling
    pauses = f"median {statistics.median(gaps_s):.2f} s, longest {max(gaps_s):.2f} s"
    print(f"{[number.name for number in signals]}: pauses of the streams: {pauses}")
    return answers, victim


async def _back_again(running: RunningFleet, victim: str) -> None:
    await until(lambda: victim not in running.pids, "it to end")
    await asyncio.to_thread(running.restart, victim)
    await asyncio.to_thread(running.wait_ready, victim)
    await asyncio.to_thread(running.wait_idle)


async def test_answers_survive_a_killed_decode(two_decodes: RunningFleet, calm: Any) -> None:
    answers, victim = await _disturbed(two_decodes, signal.SIGKILL)
    assert answers == calm
    assert "goes on elsewhere" in two_decodes.log("recipe-1"), "nothing was lost, nothing shown"
    await _back_again(two_decodes, victim)


async def test_answers_move_away_from_a_decode_that_stops(
    two_decodes: RunningFleet, calm: Any
) -> None:
    answers, victim = await _disturbed(two_decodes, signal.SIGTERM)
    assert answers == calm
    assert "a generation has moved" in two_decodes.log(victim)
    await _back_again(two_decodes, victim)


async def test_answers_survive_a_decode_that_is_killed_while_they_move(
    two_decodes: RunningFleet, calm: Any
) -> None:
    answers, victim = await _disturbed(two_decodes, signal.SIGTERM, signal.SIGKILL)
    assert answers == calm
    await _back_again(two_decodes, victim)
