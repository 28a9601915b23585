"""The life of a prefill job: from the queue to the decode instance that takes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from rorqual_runtime.cancelled import CancelledIds, Phase, cancel_target
from rorqual_runtime.clock import Clock
from rorqual_runtime.context import MessageContext, attach, inherit_deadline
from rorqual_runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    QueueTimeout,
    ServingError,
    Unavailable,
)
from rorqual_runtime.leases import LeasedJob
from rorqual_runtime.logs import bind_request_id, get_logger

from rorqual_prefill import convert
from rorqual_prefill.job import Job, JobKey
from rorqual_prefill.pages import PageGate
from rorqual_prefill.settings import PrefillSettings

_NAK_GRACE_S = 3.0
_RETRY_DELAY_S = 0.2
_REPORT_TRIES = 20
_REPORT_PAUSE_S = 0.5

log = get_logger(__name__)


class Interruption(Enum):
    """Why a job is stopped from outside."""

    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"


@dataclass(eq=False, slots=True)
class ActiveJob:
    """A job in our hands."""

    job: Job
    num_queued_tokens: int
    """Tokens that no step has begun to compute."""
    left_s: Callable[[], float]
    """Seconds until the job must be out of our hands; every wait for it is bounded by them."""
    free_lease: Callable[[Job], Awaitable[None]]
    work: asyncio.Task[None] | None = None
    interruption: Interruption | None = None
    is_lease_free: bool = False
    phase: Phase = Phase.FETCHING

    def interrupt(self, why: Interruption) -> None:
        """Stop the work; a client's cancel outranks a shutdown."""
        is_first = self.interruption is None
        if self.interruption is not Interruption.CANCELLED:
            self.interruption = why
        if self.work is not None and is_first:
            self.work.cancel()

    async def release_lease(self) -> None:
        """Let go of the job's blocks at kvmeta, once."""
        if not self.is_lease_free:
            self.is_lease_free = True
            await self.free_lease(self.job)


Serve = Callable[[ActiveJob], Awaitable[None]]
"""Computes a job and hands it over; holds nothing when it returns or raises."""


@dataclass(slots=True)
class PrefillPorts:
    """What the service does to the outside."""

    serve: Serve
    publish_failure: Callable[[Job, ServingError], Awaitable[None]]
    """Tells the recipe that the generation has failed. Raises: ServingError."""
    release_lease: Callable[[Job], Awaitable[None]]
    """Lets go of the job's blocks at kvmeta; never raises."""
    tell_untried: Callable[[Job, int], Awaitable[None]]
    """Tells the routers that a job goes back for no fault of its own; with its place on the queue.
    Never raises."""
    num_replayed: Callable[[int], int] = lambda num_stored: 0
    """Tokens of a stored prefix that are run again when no window is kept."""


@dataclass(slots=True)
class PrefillService:
    """Settles every job it is given exactly once: acknowledged, given back or dead-lettered."""

    ports: PrefillPorts
    gate: PageGate
    settings: PrefillSettings
    clock: Clock
    room_changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever more may be taken on than before, or less work is left."""
    is_draining: bool = False
    _active: dict[JobKey, ActiveJob] = field(default_factory=dict)
    cancelled: CancelledIds = field(init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.cancelled = CancelledIds(self.clock)

    # Taking on

    @property
    def has_room(self) -> bool:
        """Whether another job could begin: slots and pages are free."""
        is_full = len(self._tasks) >= self.settings.max_active or self.gate.num_free == 0
        return not (is_full or self.is_draining)

    def uncomputed(self) -> list[tuple[int, int]]:
        """Of every job in hand the tokens that no step has begun, and those before them."""
        jobs = [(a.num_queued_tokens, a.job.num_prompt_tokens) for a in self._active.values()]
        return [(left, max(0, total - left)) for left, total in jobs if left > 0]

    @property
    def num_queued_tokens(self) -> int:
        """Pulled, not yet computed."""
        return sum(active.num_queued_tokens for active in self._active.values())

    @property
    def num_active(self) -> int:
        """Jobs in our hands."""
        return len(self._tasks)

    def start(self, leased: LeasedJob) -> None:
        """Take on a job in the background."""
        task = asyncio.get_running_loop().create_task(self._run(leased))
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.room_changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a job was not settled", exc_info=error)

    # One job

    async def _run(self, leased: LeasedJob) -> None:
        async with leased:
            try:
                job = convert.job_from_wire(leased.decode(convert.JobMessage))
            except ServingError as err:
                await leased.dead_letter(f"unreadable job: {err.message}")
                return
            with bind_request_id(job.key.request_id), attach(leased.trace_context):
                await self._settle(leased, job)

    async def _settle(self, leased: LeasedJob, job: Job) -> None:
        """Run the job and settle its lease by how that ended."""
        if leased.is_exhausted and job.key not in self._active:
            await self._bury(leased, job)
            return
        error = await self._outcome(job)
        if error is None or isinstance(error, Cancelled):
            await leased.ack()
        elif isinstance(error, _GivenBack):
            await self.ports.tell_untried(job, leased.stream_seq)  # first: it may be back at once
            await leased.nak()
        elif isinstance(error, Internal):
            await leased.nak(_RETRY_DELAY_S)  # another instance may not share the fault
        else:
            await self._report(job, error)
            await leased.ack()

    async def _bury(self, leased: LeasedJob, job: Job) -> None:
        error = Internal(f"prefill gives up after {leased.num_delivered} deliveries of the job")
        await self._report(job, error)
        await self.ports.release_lease(job)
        await leased.dead_letter(error.message)

    async def _outcome(self, job: Job) -> ServingError | None:
        """Do the work; None once a decode instance has the job, else why not.

        A second delivery of a job at work ends as the first does: acknowledged earlier, the job
        would leave the queue while only this process knows it.
        """
        if (running := self._active.get(job.key)) is not None:
            assert running.work is not None
            await asyncio.wait({running.work})
            return _error_of(running)
        with self._holding(job) as active:
            active.work = asyncio.get_running_loop().create_task(self._work(active))
            await asyncio.wait({active.work})
            return _error_of(active)

    @contextlib.contextmanager
    def _holding(self, job: Job) -> Iterator[ActiveJob]:
        num_tokens = job.estimated_compute_tokens(self.ports.num_replayed)
        active = ActiveJob(job, num_tokens, self._countdown(job), self.ports.release_lease)
        self._active[job.key] = active
        try:
            yield active
        finally:
            del self._active[job.key]

    async def _work(self, active: ActiveJob) -> None:
        scope = asyncio.timeout(active.left_s())
        try:
            self._refuse_dead(active.job)
            with inherit_deadline(self.clock.monotonic_s() + active.left_s()):
                async with scope:
                    await self.ports.serve(active)
        except TimeoutError:
            if scope.expired():
                raise DeadlineExceeded("the deadline passed during prefill") from None
            raise
        finally:
            await active.release_lease()

    def _refuse_dead(self, job: Job) -> None:
        if self.cancelled.covers(job.key.request_id, job.key.choice_index):
            raise Cancelled()
        if 0 < job.deadline_unix_s <= self.clock.now_unix_s():
            raise QueueTimeout("the deadline passed in the prefill queue")

    def _countdown(self, job: Job) -> Callable[[], float]:
        """Seconds left until the job's deadline, or until the default bound where it has none."""
        left_s = self.settings.default_deadline_s
        if job.deadline_unix_s > 0:
            left_s = job.deadline_unix_s - self.clock.now_unix_s()
        end_s = self.clock.monotonic_s() + left_s
        return lambda: max(0.0, end_s - self.clock.monotonic_s())

    async def _report(self, job: Job, error: ServingError) -> None:
        """Tell the recipe, also when the bus is away for a while."""
        log.warning("prefill failed", extra={"code": error.code.name, "reason": error.message})
        for _ in range(_REPORT_TRIES):
            with contextlib.suppress(ServingError):
                await self.ports.publish_failure(job, error)
                return
            await self.clock.sleep(_REPORT_PAUSE_S)
        log.error("a failure could not be reported")

    # From outside

    async def on_cancel(self, request: convert.CancelMessage, context: MessageContext) -> None:
        """Let go of a request, or of one of its choices; remember it for jobs still queued."""
        request_id, choice_index = cancel_target(request)
        self.cancelled.add(request_id, choice_index)
        for key, active in list(self._active.items()):
            if key.request_id == request_id and choice_index in (None, key.choice_index):
                if active.interruption is not Interruption.CANCELLED:  # else it is counted
                    self.cancelled.num_by_phase[active.phase] += 1
                active.interrupt(Interruption.CANCELLED)

    async def drain(self, timeout_s: float) -> None:
        """Finish what is in hand; what is left near the end goes back to the queue."""
        self.is_draining = True
        self.room_changed.set()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=max(0.0, timeout_s - _NAK_GRACE_S))
        for active in list(self._active.values()):
            active.interrupt(Interruption.SHUTDOWN)
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_NAK_GRACE_S)


class _GivenBack(Unavailable):
    """Our own shutdown: another instance can do the job."""


def _error_of(active: ActiveJob) -> ServingError | None:
    """How the work ended, as a typed error; None when it succeeded."""
    work = active.work
    assert work is not None and work.done()
    error = asyncio.CancelledError() if work.cancelled() else work.exception()
    if error is None:
        return None
    if active.interruption is Interruption.CANCELLED:
        return Cancelled()
    if active.interruption is Interruption.SHUTDOWN:
        return _GivenBack("prefill is shutting down")
    if isinstance(error, ServingError):
        return error
    log.error("prefill failed unexpectedly", exc_info=error)
    return Internal(f"prefill failed: {type(error).__name__}")
