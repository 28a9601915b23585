"""Mutated bodies over HTTP: every answer is whole, none is a 5xx, nothing is left behind."""

from __future__ import annotations

import asyncio
import random

import httpx
import pytest

from tests.fuzz.bodies import ENDPOINTS
from tests.fuzz.mutate import mutated

PATHS = {
    "chat_completions": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "count_tokens": "/v1/messages/count_tokens",
    "tokenize": "/tokenize",
    "detokenize": "/detokenize",
}
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
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=10) as client:
        for body in bodies:
            answer = await client.post(PATHS[endpoint], content=body)
            statuses.add(answer.status_code)
            assert answer.status_code < 500, body
            assert _is_whole(answer), (body, answer.text)
    assert 400 in statuses
    async with asyncio.timeout(5):
        while fleet.recipe.service.num_active or fleet.gateway.service.admission.num_active:
            await asyncio.sleep(0.02)


def _is_whole(answer: httpx.Response) -> bool:
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return isinstance(answer.json(), dict)
    ends = (
        "data: [DONE]",
        '"type":"message_stop"}',
        '"response.completed"',
        '"response.incomplete"',
    )
    return any(end in answer.text.rsplit("\n\n", 2)[-2] for end in ends)
