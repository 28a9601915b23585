"""Every job is settled exactly once, by how its work ended."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import pytest
from opentelemetry.context import Context
from rorqual_engine.kv import PagedKvCache, uniform_layout
from rorqual_prefill.pages import PageGate
from rorqual_prefill.service import PrefillPorts, PrefillService
from rorqual_prefill.settings import PrefillSettings
from rorqual_proto.v1 import generation_pb2, prefill_pb2, router_pb2
from rorqual_runtime.cancelled import Phase
from rorqual_runtime.clock import WallClock
from rorqual_runtime.context import MessageContext
from rorqual_runtime.errors import ErrorCode, NoCapacity, ServingError
from rorqual_runtime.leases import MAX_TRIES

from tests.support.waiting import WAIT_S, until


def job_message(request_id: str = "r", **fields) -> prefill_pb2.PrefillJob:
    generation = generation_pb2.Generation(
        request_id=request_id,
        num_prompt_tokens=50,
        reply=generation_pb2.ReplyRoute(recipe_id="recipe-1"),
        **fields,
    )
    return prefill_pb2.PrefillJob(generation=generation, kv_lease_id=f"lease-{request_id}")


class Leased:
    """A `LeasedJob` without a broker; `verdict` says how it was settled."""

    def __init__(self, message=None, num_delivered: int = 1) -> None:
        self._message = message or job_message()
        self.num_delivered = num_delivered
        self.is_exhausted = num_delivered > MAX_TRIES
        self.stream_seq = 7
        self.trace_context = Context()
        self.verdict: str | None = None

    def decode(self, message_type):
        return self._message

    def _settle(self, verdict: str) -> None:
        assert self.verdict is None, f"settled twice: {self.verdict}, {verdict}"
        self.verdict = verdict

    async def ack(self):
        self._settle("ack")

    async def nak(self, delay_s: float = 0.0):
        self._settle("nak")

    async def dead_letter(self, reason: str):
        self._settle("dead")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_error):
        if self.verdict is None:
            self._settle("nak")


@dataclass
class World:
    """The service, with what it told the outside."""

    ends: dict[str, object] = field(default_factory=dict)
    """Request id -> exception its work ends with, "block", or nothing."""
    failures: list[tuple[str, ErrorCode]] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    untried: list[tuple[str, int]] = field(default_factory=list)
    num_blocked: int = 0
    """Works that have come so far."""
    phase: Phase = Phase.FETCHING
    """How far works come before they block."""
    service: PrefillService = field(init=False)

    def __post_init__(self) -> None:
        cache = PagedKvCache(uniform_layout(1, 4), 8)
        ports = PrefillPorts(self._serve, self._publish_failure, self._release, self._tell_untried)
        self.service = PrefillService(
            ports, PageGate(cache), PrefillSettings(max_active=4), WallClock()
        )

    async def _serve(self, active) -> None:
        active.phase = self.phase
        end = self.ends.get(active.job.key.request_id)
        if end == "block":
            self.num_blocked += 1
            await asyncio.sleep(600)
        if isinstance(end, BaseException):
            raise end

    async def _publish_failure(self, job, error: ServingError) -> None:
        self.failures.append((job.key.request_id, error.code))

    async def _release(self, job) -> None:
        self.released.append(job.kv_lease_id)

    async def _tell_untried(self, job, stream_seq: int) -> None:
        self.untried.append((job.key.request_id, stream_seq))

    async def run(self, leased: Leased) -> str | None:
        self.service.start(leased)  # type: ignore[arg-type]
        async with asyncio.timeout(WAIT_S):
            while self.service.num_active:
                await asyncio.sleep(0.001)
        return leased.verdict

    async def cancel(self, request_id: str, **fields) -> None:
        await self.service.on_cancel(
            router_pb2.CancelRequest(request_id=request_id, **fields), MessageContext()
        )


@pytest.fixture
async def world():
    return World()


async def test_work_done_is_acknowledged(world):
    assert await world.run(Leased()) == "ack"
    assert (world.failures, world.released) == ([], ["lease-r"])


async def test_a_failure_is_told_and_acknowledged(world):
    world.ends["r"] = NoCapacity()
    assert await world.run(Leased()) == "ack"
    assert world.failures == [("r", ErrorCode.NO_CAPACITY)]
    assert world.released == ["lease-r"]


async def test_an_unexpected_failure_goes_back_to_the_queue(world):
    world.ends["r"] = RuntimeError("a bug")
    assert await world.run(Leased()) == "nak"
    assert world.failures == world.untried == []


async def test_after_three_deliveries_it_is_buried_and_told(world):
    assert await world.run(Leased(num_delivered=4)) == "dead"
    assert world.failures == [("r", ErrorCode.INTERNAL)]
    assert world.released == ["lease-r"]


async def test_a_job_cancelled_before_it_came_dies_silently(world):
    await world.cancel("r")
    assert await world.run(Leased()) == "ack"
    assert (world.failures, world.released) == ([], ["lease-r"])


async def test_a_cancel_stops_the_work(world):
    world.ends["r"] = "block"
    leased = Leased()
    running = asyncio.create_task(world.run(leased))
    await until(lambda: world.num_blocked)
    await world.cancel("r")
    assert await running == "ack"
    assert world.failures == []


async def test_what_is_cancelled_counts_in_the_phase_it_was_in(world):
    world.ends["r"], world.phase = "block", Phase.HANDOVER
    await world.cancel("unknown")
    running = asyncio.create_task(world.run(Leased()))
    await until(lambda: world.num_blocked)
    await world.cancel("r")
    await world.cancel("r")
    await running
    assert world.service.cancelled.num_by_phase == {Phase.HANDOVER: 1}


async def test_one_choice_can_be_cancelled_alone(world):
    world.ends["r"] = "block"
    first, second = Leased(), Leased(job_message(choice_index=1))
    running = asyncio.gather(world.run(first), world.run(second))
    await until(lambda: world.num_blocked == 2)
    await world.cancel("r", choice_index=1)
    await until(lambda: second.verdict)
    assert (first.verdict, second.verdict) == (None, "ack")
    await world.cancel("r")
    await running


async def test_a_deadline_that_passed_on_the_queue_is_a_queue_timeout(world):
    assert await world.run(Leased(job_message(deadline_unix_s=time.time() - 1))) == "ack"
    assert world.failures == [("r", ErrorCode.QUEUE_TIMEOUT)]


async def test_a_deadline_that_passes_during_the_work_ends_it(world):
    world.ends["r"] = "block"
    assert await world.run(Leased(job_message(deadline_unix_s=time.time() + 0.1))) == "ack"
    assert world.failures == [("r", ErrorCode.DEADLINE_EXCEEDED)]


async def test_a_second_delivery_of_a_job_in_hand_ends_with_the_first(world):
    world.ends["r"] = "block"
    first, second = Leased(), Leased(num_delivered=MAX_TRIES + 1)
    running = asyncio.create_task(world.run(first))
    await until(lambda: world.num_blocked)
    following = asyncio.create_task(world.run(second))
    await asyncio.sleep(0.02)
    assert (first.verdict, second.verdict) == (None, None)  # an ack now could lose the job
    await world.cancel("r")
    assert (await running, await following) == ("ack", "ack")
    assert world.failures == []


async def test_a_drain_finishes_what_it_can_and_gives_back_the_rest(world):
    world.ends |= {"slow": "block"}
    quick, slow = Leased(job_message("quick")), Leased(job_message("slow"))
    for leased in (quick, slow):
        world.service.start(leased)
    async with asyncio.timeout(WAIT_S):
        await world.service.drain(3.2)
    assert (quick.verdict, slow.verdict) == ("ack", "nak")
    assert (world.failures, world.untried) == ([], [("slow", 7)])


async def test_an_unreadable_job_is_buried(world):
    assert await world.run(Leased(prefill_pb2.PrefillJob())) == "dead"


async def test_failures_are_told_once_the_bus_is_back(world):
    tries = 0
    told = world.service.ports.publish_failure

    async def flaky(job, error):
        nonlocal tries
        tries += 1
        if tries < 2:
            raise NoCapacity("bus away")
        await told(job, error)

    world.service.ports.publish_failure = flaky
    world.ends["r"] = NoCapacity()
    assert await world.run(Leased()) == "ack"
    assert world.failures == [("r", ErrorCode.NO_CAPACITY)]
