"""Clients that leave at random times, in every phase of an answer: nothing may stay held."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rorqual_cli.chaos.arena import Arena

SETTLE_S = 90.0
"""More than recipe keeps an answer that nobody asks after."""
LONGEST_SHARE = 1.3
"""Of an answer's usual time: some are over before their client leaves."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """settled_s: from the last one's end until nobody held anything. held: by whom, after all."""

    requests: int
    completed: int
    held: Mapping[str, int]
    settled_s: float

    @property
    def leaked(self) -> int:
        """What is still held, all together."""
        return sum(self.held.values())

    def to_json(self) -> dict[str, Any]:
        """For the one line of output."""
        return {
            "requests": self.requests,
            "completed": self.completed,
            "leaked": self.leaked,
            "settled_s": round(self.settled_s, 2),
        }


async def cancel_many(arena: Arena, count: int, *, num_clients: int, seed: int) -> Cancelled:
    """`count` requests, so many at once, each left after a random part of its usual time."""
    rng = random.Random(seed)
    plan = [_draw(rng, arena) for _ in range(count)]
    places = asyncio.Semaphore(num_clients)

    async def ask(number: int, patience_s: float) -> bool:
        async with places:
            return await arena.client.ask_for(arena.questions[number], patience_s)

    completed = await asyncio.gather(*(ask(*draw) for draw in plan))
    end_s = time.monotonic()
    held, settled_s = await arena.watch.settle(SETTLE_S)
    return Cancelled(count, sum(completed), held, max(0.0, settled_s - end_s))


def _draw(rng: random.Random, arena: Arena) -> tuple[int, float]:
    number = rng.randrange(len(arena.questions))
    return number, rng.uniform(0.0, LONGEST_SHARE) * arena.usual_s[number]
