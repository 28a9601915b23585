"""The waiting line of one pool: every queued job leased here, in order, until somebody has room."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from rorqual_policy.buckets import Bucket, bucket_number
from rorqual_policy.fair_share import FairShare
from rorqual_policy.prefill_line import (
    LineParams,
    PrefillLine,
    PullChoice,
    WaitingPrompt,
    assign_own_buckets,
    choose_pull,
    is_hopeless,
    line_params,
)
from rorqual_policy.prefill_policy import PREFILL_POLICIES
from rorqual_policy.step_cost import StepCost, chunk_cost_s
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.cancelled import CancelledIds, Phase
from rorqual_runtime.clock import Clock
from rorqual_runtime.context import attach
from rorqual_runtime.decision_log import log_decision
from rorqual_runtime.errors import QueueTimeout, ServingError
from rorqual_runtime.leases import LeasedJob
from rorqual_runtime.logs import get_logger
from rorqual_runtime.queue import QueueConsumer, WorkQueue

from rorqual_router.begun import BegunJobs
from rorqual_router.convert import (
    PrefillAssignmentReply,
    PrefillJob,
    PrefillRoom,
    assignment_to_wire,
    failure_to_wire,
    job_id,
    release_to_wire,
    room_from_wire,
    waiting_from_wire,
)
from rorqual_router.rooms import Rooms
from rorqual_router.settings import RouterSettings

_SWEEP_S = 0.2
_PULL_JOBS = 64
_PULL_WAIT_S = 1.0
_TAKE_BY_S = 1.0
"""An instance that comes to it later leaves an assignment alone."""
_ANSWER_S = 2.0
"""After that an assignment counts as refused: the instance has looked at the clock by then."""
_ABSENT_S = 0.05
_SHARE_DECAY = 0.995
"""Of the work that came in by bucket, a sweep: about 30 s count."""

log = get_logger(__name__)


@dataclass(eq=False, slots=True)
class HeldJob:
    """A job whose lease is ours."""

    leased: LeasedJob
    job: PrefillJob
    prompt: WaitingPrompt
    is_done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is no longer ours."""


class LineKeeper:
    """Gives waiting jobs to prefill instances in the order of the policy; nothing is lost with it.

    stream -> lease held here, renewed -> given to an instance with its lease -> acknowledged there
    A keeper that dies loses its leases, and the queue delivers its jobs to the next one. Two
    keepers at a time share the jobs between them: the order suffers for a moment, no job does.
    """

    def __init__(
        self,
        bus: Bus,
        queue: WorkQueue,
        cancelled: CancelledIds,
        clock: Clock,
        settings: RouterSettings,
        *,
        identity: tuple[str, int],
        leads: Callable[[], bool],
    ) -> None:
        """identity: instance id and incarnation. leads: whether the line is this router's."""
        self._bus = bus
        self._queue = queue
        self._cancelled = cancelled
        self._clock = clock
        self._settings = settings
        self._identity = identity
        self._leads = leads
        self._make_policy = PREFILL_POLICIES[settings.prefill_policy]
        self._line = PrefillLine(self._make_policy(Rooms().mean_cost()).order)
        self._rooms = Rooms()
        self._fair = FairShare()
        self._begun = BegunJobs(clock)
        self._held: dict[str, HeldJob] = {}
        self._shares = [0.0] * len(Bucket)
        self._own_buckets: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    @property
    def num_waiting(self) -> int:
        """Jobs in line."""
        return len(self._line)

    @property
    def waiting_s(self) -> float:
        """Estimated work of the jobs in line."""
        return self._line.work_s

    def num_by_tenant(self) -> dict[str, int]:
        """Jobs in line of each tenant."""
        return self._line.num_by_tenant()

    def num_by_bucket(self) -> dict[str, int]:
        """Jobs in line of each length class."""
        return self._line.num_by_bucket()

    async def run(self) -> None:
        """Keep the line for as long as this router leads; what is left goes back to the queue."""
        rooms = subjects.prefill_rooms(self._settings.pool)
        await self._bus.subscribe(rooms, PrefillRoom, self._on_room)
        try:
            async with asyncio.TaskGroup() as group:
                for bucket in Bucket:
                    group.create_task(self._pull(bucket))
                group.create_task(self._give_out())
                group.create_task(self._sweep())
        finally:
            await self.close()

    async def close(self) -> None:
        """Give everything back to the queue, for another keeper; what is being given away just now
        is either taken or comes back as well."""
        self._is_closing = True
        self._give_all_back()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_ANSWER_S)

    def cancel(self, request_id: str, choice_index: int | None) -> None:
        """Jobs of that request, or of one choice of it, wait no more."""
        for held in list(self._held.values()):
            generation = held.job.generation
            is_meant = choice_index in (None, generation.choice_index)
            if generation.request_id == request_id and is_meant:
                self._take_out(held)
                self._end_cancelled(held)

    def _end_cancelled(self, held: HeldJob) -> None:
        self._cancelled.num_by_phase[Phase.QUEUED] += 1
        self._spawn(self._settle(held, held.leased.ack))

    # Into the line

    async def _pull(self, bucket: Bucket) -> None:
        subject = subjects.prefill_jobs(self._settings.pool, bucket)
        consumer = await self._consumer(subject, f"prefill-{self._settings.pool}-{bucket}")
        while True:
            if not self._may_pull():
                await asyncio.sleep(_SWEEP_S)
                continue
            for leased in await consumer.pull(_PULL_JOBS, _PULL_WAIT_S):
                self._take_in(leased, bucket)

    async def _consumer(self, subject: str, durable: str) -> QueueConsumer:
        while True:
            try:
                return await self._queue.consumer(subject, durable)
            except ServingError as error:
                log.info("the queue has no consumer yet", extra={"reason": error.message})
                await asyncio.sleep(_SWEEP_S)

    def _may_pull(self) -> bool:
        has_room = len(self._held) < self._settings.max_line_jobs
        return has_room and not self._is_closing and self._leads()

    def _take_in(self, leased: LeasedJob, bucket: Bucket) -> None:
        try:
            job = leased.decode(PrefillJob)
        except ServingError as error:
            self._spawn(leased.dead_letter(f"unreadable job: {error.message}"))
            return
        prompt = waiting_from_wire(job, bucket_number(bucket), self._work_s(job))
        held = HeldJob(leased, job, prompt)
        if (known := self._held.get(prompt.job_id)) is not None:
            known.leased.let_go()  # delivered again: that lease is over
            self._drop(known)
        self._spawn(self._hold(held))
        if self._cancelled.covers(job.generation.request_id, job.generation.choice_index):
            self._end_cancelled(held)
            return
        self._held[prompt.job_id] = held
        self._line.add(prompt)
        self._shares[prompt.bucket] += prompt.work_s
        self._changed.set()

    def _work_s(self, job: PrefillJob) -> float:
        num_tokens = job.generation.num_prompt_tokens
        missed = min(job.num_missed_tokens or num_tokens, num_tokens)
        return chunk_cost_s(self._rooms.mean_cost(), missed, num_tokens - missed)

    async def _hold(self, held: HeldJob) -> None:
        """The lease is renewed until the job is somebody else's."""
        async with held.leased:
            await held.is_done.wait()

    # Out of the line

    async def _on_room(self, message: PrefillRoom, _context: object) -> None:
        for job in message.untried:
            self._begun.take_back(job_id(job), job.stream_seq)
        self._rooms.hear(room_from_wire(message), self._clock.monotonic_s())
        self._changed.set()

    async def _give_out(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._give_one():
                pass

    def _give_one(self) -> bool:
        """Decide who takes what next; False when nobody can take anything."""
        if not self.num_waiting or self._is_closing:
            return False
        cost = self._rooms.mean_cost()
        heads, pullers = self._line.heads(), self._rooms.pullers(cost, self._clock.monotonic_s())
        params = self._params(cost)
        choice: PullChoice = choose_pull(heads, pullers, self._fair, params)
        if choice.job_id is None or choice.instance_id is None:
            return False
        log_decision("pull", (heads, pullers, self._fair, params), choice)
        held = self._held[choice.job_id]
        self._line.remove(choice.job_id)
        if held.leased.is_lost:  # after an outage: the queue delivers it again
            held.leased.let_go()
            self._drop(held)
            return True
        self._fair = choice.fair
        self._rooms.ask(choice.instance_id)
        self._spawn(self._assign(held, choice.instance_id))
        return True

    def _params(self, cost: StepCost) -> LineParams:
        return line_params(
            self._make_policy(cost, self._settings.step_limit_s),
            cost,
            waiting_s=self.waiting_s,
            num_ranks=len(list(self._rooms.instance_ids)),
            own_buckets=self._own_buckets,
            quantum_s=self._settings.fair_quantum_s,
            weights=self._settings.tenant_weights,
        )

    async def _assign(self, held: HeldJob, instance_id: str) -> None:
        """Give the job and its lease away; back into the line when they are not taken."""
        take_by_unix_s = self._clock.now_unix_s() + _TAKE_BY_S
        job = held.prompt.job_id, held.leased.stream_seq
        held.leased.num_begun = self._begun.num(*job)
        self._begun.note(*job)  # before the answer: it may be given back sooner
        knows_room = False
        try:
            with attach(held.leased.trace_context):
                reply = await self._bus.request(
                    subjects.prefill_assign(instance_id),
                    assignment_to_wire(held.leased.handle, take_by_unix_s),
                    PrefillAssignmentReply,
                    timeout_s=_ANSWER_S,
                    absent_timeout_s=_ABSENT_S,
                )
            knows_room = True
            held.leased.let_go()
            self._drop(held)
            self._rooms.hear(room_from_wire(reply.taken), self._clock.monotonic_s())
        except ServingError as error:
            log.info("not taken", extra={"prefill_id": instance_id, "reason": error.message})
        finally:
            if not knows_room:
                self._begun.take_back(*job)
                self._back_into_line(held)
            self._rooms.answered(instance_id, knows_room=knows_room)
            self._changed.set()

    def _back_into_line(self, held: HeldJob) -> None:
        if self._held.get(held.prompt.job_id) is not held:
            return  # cancelled or delivered again meanwhile
        if self._is_closing:
            self._drop(held)
        else:
            self._line.add(held.prompt)

    # Upkeep

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._rooms.forget_silent(self._clock.monotonic_s())
            self._shares = [_SHARE_DECAY * share for share in self._shares]
            self._own_buckets = assign_own_buckets(self._rooms.instance_ids, self._shares)
            if not self._leads():
                self._give_all_back()
            await self._drop_hopeless()
            self._changed.set()

    async def _drop_hopeless(self) -> None:
        """Who would be too late is told so at once; not heard, it is told with the next sweep."""
        now_unix_s = self._clock.now_unix_s()
        for prompt in self._line:
            if not is_hopeless(prompt, now_unix_s) or prompt.job_id not in self._line:
                continue
            held = self._held[prompt.job_id]
            error = QueueTimeout("the deadline can not be met any more: it waited for prefill")
            with contextlib.suppress(ServingError):
                await self._tell(held, error)
                self._take_out(held)
                await self._settle(held, held.leased.ack)

    async def _tell(self, held: HeldJob, error: ServingError) -> None:
        recipe_id = held.job.generation.reply.recipe_id
        if subjects.is_token(recipe_id):
            batch = failure_to_wire(held.job, error, *self._identity)
            await self._bus.publish(subjects.recipe_tokens(recipe_id), batch)

    async def _settle(self, held: HeldJob, verdict: Callable[[], Awaitable[bool]]) -> None:
        """The job ends here: so does the lease of its stored blocks."""
        await verdict()
        self._drop(held)
        if held.job.kv_lease_id:
            with contextlib.suppress(ServingError):  # it expires by itself
                await self._bus.publish(subjects.kvmeta_release(), release_to_wire(held.job))

    def _give_all_back(self) -> None:
        """To the queue: leaving the leases unsettled does it."""
        for prompt in self._line:
            self._drop(self._held[prompt.job_id])

    def _take_out(self, held: HeldJob) -> None:
        """Nobody can be given it any more; what waits is always held as well."""
        if self._held.get(held.prompt.job_id) is held:
            self._line.remove(held.prompt.job_id)
            del self._held[held.prompt.job_id]

    def _drop(self, held: HeldJob) -> None:
        """Its lease is not renewed any more; where it was not settled the job goes back."""
        self._take_out(held)
        held.is_done.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a job in line was not settled", exc_info=error)
