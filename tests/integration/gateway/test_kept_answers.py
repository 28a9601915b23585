"""A key whose gateway has died goes to one of those who wait for it; changes don't undo others'."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import pytest
from rorqual_gateway.kept_answers import KeptAnswer, KeptAnswers
from rorqual_runtime.clock import WallClock
from rorqual_runtime.redis_link import RedisLink

from tests.support.servers import RedisServer
from tests.support.waiting import WAIT_S

NAME = "rorqual:v1:gateway:answer:test"
NUM_WAITING = 8


@pytest.fixture
async def kept_answers(redis_server: RedisServer) -> AsyncIterator[KeptAnswers]:
    link = RedisLink(redis_server.url, timeout_s=WAIT_S, probe_interval_s=0.1, max_connections=4)
    async with aclosing(link):
        assert await link.connect()
        yield KeptAnswers(
            link, WallClock(), lambda owner: owner != "dead", ttl_s=60.0, max_bytes=1 << 20
        )


def _claim(clock_s: float, request_id: str, owner: str) -> KeptAnswer:
    return KeptAnswer("d", request_id, owner, clock_s, clock_s + 60)


async def test_one_of_all_who_wait_takes_the_place_of_the_dead(kept_answers: KeptAnswers) -> None:
    now_s = WallClock().now_unix_s()
    dead = _claim(now_s, "first", "dead")
    assert await kept_answers.claim(NAME, dead) == dead

    async def ask(number: int) -> bool:
        wanted = _claim(now_s, f"r{number}", "alive")
        got = await kept_answers.claim(NAME, wanted)
        if got is not None and got.request_id == wanted.request_id:
            await kept_answers.keep(NAME, replace(wanted, recipe_id="recipe-1"))
            return True
        assert got is not None and got.recipe_id == "recipe-1"
        return False

    assert sum(await asyncio.gather(*map(ask, range(NUM_WAITING)))) == 1


async def test_who_leaves_late_undoes_nothing(kept_answers: KeptAnswers) -> None:
    claim = _claim(WallClock().now_unix_s(), "r", "alive")
    begun = replace(claim, recipe_id="recipe-1")
    whole = replace(begun, body=b"all of it")
    for kept in (claim, begun, whole, replace(begun, charged_tokens=7)):
        await kept_answers.keep(NAME, kept)
    found = await kept_answers.claim(NAME, replace(claim, request_id="another"))
    assert found == replace(whole, charged_tokens=7)
    assert await kept_answers.charged_tokens(NAME, "r") == 7
