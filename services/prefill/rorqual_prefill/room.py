"""What this instance could take on: said to the routers, who keep the line and give it jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from opentelemetry import trace
from rorqual_policy.step_cost import StepCost, chunk_cost_s
from rorqual_runtime import subjects
from rorqual_runtime.clock import Clock
from rorqual_runtime.context import MessageContext
from rorqual_runtime.errors import NoCapacity, ServingError
from rorqual_runtime.leases import LeasedJob
from rorqual_runtime.queue import ACK_WAIT_S
from rorqual_runtime.service import ServiceContext

from rorqual_prefill import convert
from rorqual_prefill.job import Job
from rorqual_prefill.service import PrefillService
from rorqual_prefill.settings import PrefillSettings

_HEARTBEAT_S = 1.0
_GAP_S = 0.005
"""Changes that follow each other closely are said once."""


class RoomKeeper:
    """Tells the routers of every change in what is left to do here, and takes what they give."""

    def __init__(
        self,
        ctx: ServiceContext,
        service: PrefillService,
        settings: PrefillSettings,
        cost: Callable[[], StepCost],
        running_s: Callable[[], float],
    ) -> None:
        """running_s: until the step under way is expected to be done."""
        self._ctx = ctx
        self._service = service
        self._settings = settings
        self._cost = cost
        self._running_s = running_s
        self._seq = 0

    async def run(self) -> None:
        """Say it after each change, and now and then, until the service drains."""
        subject = subjects.prefill_rooms(self._settings.pool)
        while not self._service.is_draining:
            self._service.room_changed.clear()
            with contextlib.suppress(ServingError):  # said again with the next heartbeat
                await self._ctx.bus.publish(subject, self._room())
            await asyncio.sleep(_GAP_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._service.room_changed.wait(), _HEARTBEAT_S)
        with contextlib.suppress(ServingError):
            await self._ctx.bus.publish(subject, self._room())

    async def on_assignment(
        self, message: convert.AssignmentMessage, _context: MessageContext
    ) -> convert.AssignmentReplyMessage:
        """Take a job over with its lease; the answer says what is left beside it.

        Raises: NoCapacity when it came too late, or nothing is free any more; Corrupt.
        """
        trace.get_current_span().set_attribute("rorqual.prefill_id", self._ctx.instance_id)
        if self._ctx.clock.now_unix_s() > message.take_by_unix_s:
            raise NoCapacity("the assignment came too late")
        if not self._service.has_room:
            raise NoCapacity("no slot or page is free")
        handle = convert.lease_from_wire(message)
        leased = LeasedJob.take_over(self._ctx.bus.connection, handle, ack_wait_s=ACK_WAIT_S)
        self._service.start(leased)
        await asyncio.sleep(0)  # it is in hand now, and counts
        return convert.taken_to_wire(self._room())

    async def tell_untried(self, job: Job, stream_seq: int) -> None:
        """A job goes back to the queue for no fault of its own: no try of it."""
        room = self._room()
        room.untried.append(convert.untried_to_wire(job.key, stream_seq))
        with contextlib.suppress(ServingError):  # it counts as one then
            await self._ctx.bus.publish(subjects.prefill_rooms(self._settings.pool), room)

    def _room(self) -> convert.RoomMessage:
        cost = self._cost()
        works_s = [chunk_cost_s(cost, left, done) for left, done in self._service.uncomputed()]
        self._seq += 1
        return convert.room_to_wire(
            instance_id=self._ctx.instance_id,
            incarnation=self._ctx.incarnation,
            seq=self._seq,
            buckets=self._settings.buckets,
            is_open=self._service.has_room,
            pending_s=sum(works_s),
            longest_s=max(works_s, default=0.0),
            running_s=self._running_s(),
            cost=cost,
        )


_REPORT_TTL_S = 1.0


class WaitingWork:
    """What waits in line at the routers, by their load reports."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reports: dict[str, tuple[float, float, int]] = {}

    async def on_load(self, report: convert.LoadMessage, _context: MessageContext) -> None:
        """Take in one router's report."""
        now_s = self._clock.monotonic_s()
        kept = {i: r for i, r in self._reports.items() if now_s - r[0] <= _REPORT_TTL_S}
        load = report.router
        kept[report.instance_id] = now_s, load.waiting_s, load.num_prefill
        self._reports = kept  # replaced, not changed: the engine thread reads it

    def now(self) -> tuple[float, int]:
        """Seconds of work that wait, and the instances that share it; from any thread."""
        now_s = self._clock.monotonic_s()
        fresh = [r for r in self._reports.values() if now_s - r[0] <= _REPORT_TTL_S]
        return sum(r[1] for r in fresh), max((1, *(r[2] for r in fresh)))  # 0: not heard of us yet
