"""Clients that ask one question after another for as long as the load lasts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rorqual_cli.chaos.answers import Answer
from rorqual_cli.chaos.client import Client
from rorqual_cli.chaos.questions import Question
from rorqual_cli.chaos.verdict import Asked
from rorqual_cli.problems import CliError


class Load:
    """asked: what has ended, in the order of its end. in_full_swing: once as many have ended as
    there are clients, so that requests are in all phases."""

    def __init__(self, client: Client, questions: Sequence[Question], num_clients: int) -> None:
        self._client = client
        self._questions = questions
        self.num_clients = num_clients
        self._numbers = itertools.cycle(range(len(questions)))
        self._is_over = False
        self.asked: list[Asked] = []
        self.in_full_swing = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All clients ask while the block runs; then each gets the answer it waits for."""
        self._is_over = False
        tasks = [asyncio.create_task(self._ask_on()) for _ in range(self.num_clients)]
        try:
            yield
            self._is_over = True
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_on(self) -> None:
        while not self._is_over:
            number = next(self._numbers)
            self.asked.append(await self._client.ask(number, self._questions[number]))
            if len(self.asked) >= self.num_clients:
                self.in_full_swing.set()


@dataclass(frozen=True, slots=True)
class CalmAnswer:
    """A right answer, and how long it took."""

    answer: Answer
    seconds: float


async def ask_each(client: Client, questions: Sequence[Question], at_once: int) -> list[CalmAnswer]:
    """The right answers, of a calm fleet. Raises: CliError when one does not come."""
    places = asyncio.Semaphore(at_once)

    async def ask(number: int) -> CalmAnswer:
        async with places:
            asked = await client.ask(number, questions[number])
        if asked.answer is None:
            kind = questions[number].kind
            raise CliError(f"no answer on a calm day ({kind}): {asked.failure}")
        return CalmAnswer(asked.answer, asked.ended_s - asked.started_s)

    return await asyncio.gather(*map(ask, range(len(questions))))
