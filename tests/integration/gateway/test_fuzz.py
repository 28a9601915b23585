"""Mutated bodies over HTTP: every answer is whole, none is a 5xx, nothing is left behind."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.bodies import ENDPOINTS
from tests.fuzz.http_client import PATHS, Connection
from tests.fuzz.mutate import mutated
from tests.support.waiting import until

NUM_BODIES = 60


@pytest.mark.parametrize("endpoint", PATHS)
async def test_mutated_bodies_get_whole_answers(start_fleet, endpoint: str) -> None:
    fleet = await start_fleet()
    fleet.say("Hello", per_delta=9)
    bodies = [
        mutated(ENDPOINTS[endpoint], random.Random(f"http/{endpoint}/{i}"))
        for i in range(NUM_BODIES)
    ]
    statuses: set[int] = set()
    async with Connection(int(fleet.gateway.url.rpartition(":")[2])) as connection:
        for body in bodies:
            answer = await connection.send("POST", PATHS[endpoint], body)
            statuses.add(answer.status)
            assert answer.status < 500, body
            assert answer.is_whole, (body, answer.body)
    assert 400 in statuses
    await until(
        lambda: (
            not fleet.recipe.service.num_active and not fleet.gateway.service.admission.num_active
        )
    )
