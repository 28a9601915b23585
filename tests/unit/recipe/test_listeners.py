"""An answer goes on while somebody listens, or may come back; then it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from rorqual_recipe.listeners import UNCLAIMED_S, Listeners
from rorqual_recipe.stream_table import StreamTable
from rorqual_runtime.clock import ManualClock

PATIENCE_S = 30.0


@dataclass
class _Bus:
    is_settled: bool = True


@dataclass
class _Stream:
    request_id: str
    gateway_id: str = ""
    attached_s: float = 0.0
    left_s: float | None = None
    asked_s: float = 0.0
    has_begun: bool = True


class World:
    """Streams a, b, c ... and who listens."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.clock, self.bus, self.table = ManualClock(), _Bus(), StreamTable()
        self.listeners = Listeners(
            cast(Any, self.bus), self.clock, self.table, patience_s=patience_s
        )

    def stream(self, request_id: str, gateway_id: str) -> Any:
        stream = cast(Any, _Stream(request_id))
        self.table.add(stream)
        self.listeners.attach(stream, gateway_id)
        return stream

    def gone(self) -> list[str]:
        return [stream.request_id for stream in self.listeners.abandoned()]

    async def report_for(self, seconds: float, *gateways: tuple[str, int]) -> None:
        for _ in range(int(seconds)):
            await self.clock.advance(1.0)
            for gateway_id, incarnation in gateways:
                self.listeners.note_report(gateway_id, incarnation)


async def test_one_that_was_left_ends_when_nobody_comes_back() -> None:
    world = World()
    left, taken_up, other = (world.stream(name, "g1") for name in "abc")
    await world.report_for(1, ("g1", 1), ("g2", 1))
    for stream in (left, taken_up):
        world.listeners.leave(stream, "g1")
    world.listeners.attach(taken_up, "g2")
    await world.report_for(PATIENCE_S, ("g1", 1), ("g2", 1))
    assert world.gone() == []
    await world.report_for(1, ("g1", 1), ("g2", 1))
    assert world.gone() == ["a"]
    assert other.left_s is None


async def test_who_listens_no_more_does_not_end_what_others_listen_to() -> None:
    world = World()
    stream = world.stream("a", "g1")
    world.listeners.attach(stream, "g2")
    world.listeners.leave(stream, "g1")
    await world.report_for(2 * PATIENCE_S, ("g2", 1))
    assert world.gone() == []


async def test_answers_of_a_gateway_that_fell_silent_end() -> None:
    world = World()
    world.stream("a", "g1")
    world.stream("b", "g2")
    world.stream("c", "never-heard")
    await world.report_for(3, ("g1", 1), ("g2", 1))
    await world.report_for(PATIENCE_S + 1, ("g2", 1))
    assert world.gone() == ["a"]


async def test_answers_of_a_gateways_former_self_end_and_no_newer_ones() -> None:
    world = World()
    world.stream("a", "g1")
    await world.report_for(1, ("g1", 1))
    await world.clock.advance(0.1)
    world.stream("b", "g1")  # of the new one, which has not reported yet
    await world.report_for(PATIENCE_S + 2, ("g1", 2))
    assert world.gone() == ["a"]


async def test_without_a_bus_nobody_can_be_heard() -> None:
    world = World()
    world.stream("a", "g1")
    await world.report_for(1, ("g1", 1))
    world.bus.is_settled = False
    await world.clock.advance(10 * PATIENCE_S)
    assert world.gone() == []
    world.bus.is_settled = True
    await world.report_for(1, ("g1", 1))
    assert world.gone() == []


async def test_a_double_is_forgotten_once_nobody_asks_after_it() -> None:
    world = World()
    double, waiting, begun = (world.stream(name, "g1") for name in "abc")
    double.has_begun = waiting.has_begun = False
    for _ in range(int(UNCLAIMED_S)):
        await world.report_for(1, ("g1", 1))
        world.listeners.asked_after(waiting)
    assert world.listeners.unclaimed() == []
    await world.report_for(1, ("g1", 1))
    assert world.listeners.unclaimed() == [double]
    assert begun.asked_s < waiting.asked_s


async def test_nobody_can_ask_while_the_bus_is_away() -> None:
    world = World()
    world.stream("a", "g1").has_begun = False
    world.bus.is_settled = False
    await world.clock.advance(2 * UNCLAIMED_S)
    assert world.gone() == []
    world.bus.is_settled = True
    assert world.listeners.unclaimed() == []


async def test_one_that_waits_in_a_queue_is_no_double() -> None:
    world = World()
    left, orphan = world.stream("a", "g1"), world.stream("b", "g2")
    left.has_begun = orphan.has_begun = False
    await world.report_for(1, ("g1", 1), ("g2", 1))
    world.listeners.leave(left, "g1")
    await world.report_for(10, ("g1", 1))
    assert (world.gone(), world.listeners.unclaimed()) == ([], [])
    await world.report_for(PATIENCE_S - 9, ("g1", 1))
    assert world.gone() == ["a", "b"]  # these are cancelled everywhere


async def test_who_waits_for_more_than_a_double_may_is_ended_first() -> None:
    world = World(patience_s=2 * UNCLAIMED_S)
    world.stream("a", "g1").has_begun = False
    await world.report_for(1, ("g1", 1))
    await world.report_for(2 * UNCLAIMED_S + 1, ("g2", 1))
    assert world.gone() == ["a"]
    assert world.listeners.unclaimed() == []
