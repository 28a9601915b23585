"""Instances die and clients leave: the next request succeeds and nothing stays held."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from rorqual_policy.blocks import BLOCK_TOKENS

from tests.e2e.chat import MODEL
from tests.support.fleet import FleetFactory, RunningFleet
from tests.support.waiting import WAIT_S

NUM_STREAMS = 50


def _body(content: str, max_tokens: int, *, stream: bool = False) -> dict[str, object]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }


def _ask(running: RunningFleet, content: str) -> dict[str, Any]:
    url = f"{running.base_url}/v1/chat/completions"
    answer = httpx.post(url, json=_body(content, 8), timeout=60)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def _text(body: dict[str, Any]) -> str:
    return str(body["choices"][0]["message"]["content"])


def _num_cached(body: dict[str, Any]) -> int:
    return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])


def _answer(running: RunningFleet, content: str) -> str:
    return _text(_ask(running, content))


def test_the_next_request_survives_a_killed_idle_prefill_and_decode(fleet: FleetFactory) -> None:
    running = fleet(prefill=2, decode=2)
    expected = _answer(running, "Name a river.")
    for service in ("prefill", "decode"):
        running.kill(service)
        assert _answer(running, "Name a river.") == expected


async def _cancel_at_random(running: RunningFleet, rng: random.Random, index: int) -> None:
    """Open a stream and hang up after a random time: queued, in prefill, or in mid-answer."""
    content = f"{index} " + "cancel this " * rng.choice([1, 40, 300])
    body = _body(content, 400, stream=True)
    patience_s = rng.uniform(0.0, 4.0)

    async def read() -> None:
        async with (
            httpx.AsyncClient(timeout=60) as client,
            client.stream("POST", f"{running.base_url}/v1/chat/completions", json=body) as answer,
        ):
            assert answer.status_code == 200
            async for _ in answer.aiter_bytes():
                pass

    try:
        await asyncio.wait_for(read(), patience_s)
    except TimeoutError:
        return
    pytest.fail("the answer ended before the client left: nothing was cancelled")


async def test_cancelled_streams_leave_nothing_behind(shared_fleet: RunningFleet) -> None:
    rng = random.Random(7)
    _answer(shared_fleet, "warm up")
    await asyncio.gather(
        *(_cancel_at_random(shared_fleet, rng, index) for index in range(NUM_STREAMS))
    )
    await asyncio.to_thread(shared_fleet.wait_idle)
    reporting = {name.rsplit("-", 1)[0] for name in await asyncio.to_thread(shared_fleet.loads)}
    assert reporting >= {*("gateway", "recipe", "router", "kvmeta", "grammar", "prefill", "decode")}
    assert _answer(shared_fleet, "Still there?")


def test_a_stored_block_that_was_damaged_is_computed_again(fleet: FleetFactory) -> None:
    running = fleet()
    content = "Remember this line. " * 60
    first = _answer(running, content)
    _wait_for_hit(running, content)
    for path in running.home.glob("store/slots-*/*.data"):
        _damage(path)
    instance_id = running.kill("prefill")  # with what it keeps in memory
    running.restart(instance_id)
    running.wait_ready(instance_id)
    again = _ask(running, content)
    assert _num_cached(again) == 0
    assert _text(again) == first


def _wait_for_hit(running: RunningFleet, content: str) -> None:
    """Decode writes blocks behind the answer."""
    end_s = time.monotonic() + WAIT_S
    while _num_cached(_ask(running, content)) < 2 * BLOCK_TOKENS:
        assert time.monotonic() < end_s, "no block was stored"


def _damage(path: Path) -> None:
    """One bit in every 64 KiB: some in every block."""
    with path.open("r+b") as file:
        for at in range(1000, path.stat().st_size, 64 << 10):
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1]))
