"""A generation that is lost again and again holds one prompt, and outlasts a full store."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from rorqual_proto.v1.tensor_pb2 import Payload
from rorqual_recipe import convert, restarts
from rorqual_recipe.output.sequence import DeltaOrder
from rorqual_recipe.restarts import Restarts
from rorqual_recipe.stream_table import StreamTable
from rorqual_recipe.streams import StreamSource
from rorqual_runtime.clock import ManualClock
from rorqual_runtime.errors import NoCapacity, ServingError, Unavailable

PROMPT = array("i", [1, 2, 3]).tobytes()


@dataclass
class _Choice:
    order: DeltaOrder[Any] = field(default_factory=lambda: DeltaOrder(4, decode_id="decode-1"))
    token_ids: Any = field(default_factory=lambda: array("i", [7]))
    num_losses: int = 0
    is_finished: bool = False
    restart_prompt: Any = None


@dataclass
class _Stream:
    request_id: str = "r"
    take_over: int = 0
    choices: list[_Choice] = field(default_factory=lambda: [_Choice()])
    prompts: list[Any] = field(default_factory=lambda: [Payload(inline=PROMPT)])
    source: StreamSource = field(
        default_factory=lambda: StreamSource((convert.Generation(request_id="r"),), (0,))
    )


class World:
    """It is bus, tensor store and context of the restarts of one stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.bus, self.tensors = ManualClock(), self, None
        self.put_errors: list[ServingError] = []
        self.freed: list[Any] = []
        self.submitted: list[Any] = []
        self.failed: list[ServingError] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.stream, table = cast(Any, _Stream()), StreamTable()
        table.add(self.stream)
        for name in ("get_payload", "put_payload"):
            monkeypatch.setattr(restarts, name, getattr(self, name))
        monkeypatch.setattr(restarts, "free_payload", lambda _, payload: self.freed.append(payload))
        self.restarts = Restarts(cast(Any, self), table, lambda _, err: self.failed.append(err))

    def track(self, work: Any) -> None:
        self.tasks.append(asyncio.create_task(work))

    async def get_payload(self, _: Any, payload: Payload, **options: Any) -> bytes:
        return payload.inline

    async def put_payload(self, _: Any, data: bytes, **options: Any) -> Payload:
        if self.put_errors:
            raise self.put_errors.pop()
        return Payload(inline=data)

    async def request(self, subject: str, request: Any, *args: Any, **options: Any) -> None:
        self.submitted.append(request)

    async def lose(self) -> None:
        self.restarts.restart(self.stream, 0, Unavailable("gone"))
        await asyncio.gather(*self.tasks)


async def test_only_the_last_restarts_prompt_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    first = world.stream.prompts[0]
    for _ in range(3):
        await world.lose()
    assert len(world.submitted) == 3
    assert len(world.freed) == 2
    assert world.stream.prompts[0] is first
    assert len(world.stream.prompts) == 2
    assert not any(freed is held for freed in world.freed for held in world.stream.prompts)


async def test_a_store_that_is_full_for_a_moment_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.put_errors.append(NoCapacity("full"))
    await world.lose()
    assert (len(world.submitted), world.failed) == (1, [])


async def test_a_start_that_comes_late_leaves_the_next_ones_prompt_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.restarts.restart(world.stream, 0, Unavailable("gone"))
    await world.lose()
    assert len(world.submitted) == 1
    assert world.stream.choices[0].restart_prompt is world.stream.prompts[-1]
    assert not any(freed is world.stream.prompts[-1] for freed in world.freed)
