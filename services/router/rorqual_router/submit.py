"""From a submitted request to jobs on the prefill queue."""

from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry import trace
from rorqual_policy import (
    BLOCK_TOKENS,
    Bucket,
    QueueState,
    choose_bucket,
    decide_admission,
)
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.cancelled import CancelledIds
from rorqual_runtime.clock import Clock
from rorqual_runtime.decision_log import log_decision
from rorqual_runtime.errors import (
    Cancelled,
    ContextTooLong,
    DeadlineExceeded,
    NoCapacity,
    RateLimited,
)
from rorqual_runtime.logs import get_logger
from rorqual_runtime.queue import WorkQueue
from rorqual_runtime.tensors import TensorPlane
from rorqual_runtime.waiting import uninterrupted

from rorqual_router.convert import (
    JobParts,
    PrefixMatch,
    Submission,
    TensorTicket,
    job_id,
    job_to_wire,
)
from rorqual_router.fleet import Fleet
from rorqual_router.preparation import Preparation
from rorqual_router.queue_gauge import Admitted, QueueGauge
from rorqual_router.settings import RouterSettings
from rorqual_router.tenant_counts import TenantCounts

log = get_logger(__name__)


@dataclass(slots=True)
class Counters:
    """Since start. Arrivals count whether or not they were admitted."""

    submitted: int = 0
    missed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Queued:
    """What the caller learns about its request."""

    bucket: Bucket
    num_cached_tokens: int


class Submitter:
    """Handles one submission after the other; all waits are bounded by settings and deadline."""

    def __init__(
        self,
        bus: Bus,
        tensors: TensorPlane,
        queue: WorkQueue,
        gauge: QueueGauge,
        tenants: TenantCounts,
        fleet: Fleet,
        cancelled: CancelledIds,
        clock: Clock,
        settings: RouterSettings,
    ) -> None:
        self._bus = bus
        self._queue = queue
        self._gauge = gauge
        self._tenants = tenants
        self._fleet = fleet
        self._cancelled = cancelled
        self._clock = clock
        self._settings = settings
        self._preparation = Preparation(bus, tensors, fleet, settings)
        self.match_times = self._preparation.match_times
        self.counters = Counters()

    async def submit(self, submission: Submission) -> Queued:
        """Publish one prefill job a choice.

        Raises: ContextTooLong, Cancelled, DeadlineExceeded, NoCapacity or RateLimited with
            retry_after_s, what grammar said about the constraint, what reading the prompt or
            publishing failed with.
        """
        submitted_unix_s = self._clock.now_unix_s()
        self._check_alive(submission)
        await self._wait_for_fleet(submission)
        self._check_context(submission)
        self._check_room(submission)
        with self._gauge.admit(len(submission.generations)) as admitted:
            return await self._enqueue(submission, admitted, submitted_unix_s)

    async def _enqueue(
        self, submission: Submission, admitted: Admitted, submitted_unix_s: float
    ) -> Queued:
        found = await self._preparation.run(submission)
        match = found.match
        saved_tokens = match.num_blocks * BLOCK_TOKENS - self._fleet.num_replayed_tokens()
        missed_tokens = max(1, submission.num_prompt_tokens - max(0, saved_tokens))
        self._count(submission, missed_tokens)
        parts = JobParts(
            match,
            submitted_unix_s,
            num_missed_tokens=missed_tokens,
            exact_only=self._settings.exact_prefixes,
            image_embeddings=found.image_embeddings,
        )
        bucket = choose_bucket(submission.num_prompt_tokens)
        try:
            self._check_alive(submission)
            is_new = await self._publish(submission, parts, found.grammars, bucket, admitted)
        except BaseException:
            await uninterrupted(self._preparation.release(match))
            raise
        if not is_new:  # asked again by somebody who missed the answer: the jobs have a lease
            await self._preparation.release(match)
        _describe(submission, bucket, match)
        return Queued(bucket, submission.num_prompt_tokens - missed_tokens)

    def _check_alive(self, submission: Submission) -> None:
        if submission.request_id in self._cancelled:
            raise Cancelled()
        if self._left_s(submission) <= 0:
            raise DeadlineExceeded()

    def _left_s(self, submission: Submission) -> float:
        return submission.deadline_unix_s - self._clock.now_unix_s()

    def _check_context(self, submission: Submission) -> None:
        limit_tokens = self._fleet.max_context_tokens()
        if limit_tokens and submission.num_prompt_tokens >= limit_tokens:
            raise ContextTooLong(submission.num_prompt_tokens, limit_tokens - 1)

    async def _wait_for_fleet(self, submission: Submission) -> None:
        wait_s = min(self._settings.fleet_wait_s, self._left_s(submission))
        missing = await self._fleet.wait_alive(("prefill", "decode"), wait_s)
        if missing:
            self._count(submission, submission.num_prompt_tokens)
            raise NoCapacity(f"no {' and no '.join(missing)} instance is alive", retry_after_s=5)

    def _check_room(self, submission: Submission) -> None:
        """The queue takes all choices, or the request is refused; what was admitted once is not."""
        tenant = submission.generations[0].tenant
        num_submitted = self.counters.submitted
        queue = QueueState(
            num_queued_jobs=self._gauge.num_jobs,
            max_queued_jobs=self._settings.max_queued_jobs,
            tokens_per_job=self.counters.missed_tokens / num_submitted if num_submitted else 0.0,
            tokens_per_s=self._fleet.prefill_tokens_per_s(),
            num_tenant_jobs=self._tenants.waiting(tenant),
            max_tenant_jobs=self._settings.max_tenant_jobs,
        )
        num_jobs = len(submission.generations)
        if submission.is_restart:
            self._tenants.note(tenant, num_jobs)
            return
        admission = decide_admission(queue, num_jobs)
        log_decision("admission", (queue, num_jobs), admission)
        if not admission.accepted:
            self._count(submission, submission.num_prompt_tokens)
            if admission.is_own_fault:
                raise RateLimited(admission.retry_after_s, admission.reason)
            raise NoCapacity(admission.reason, retry_after_s=admission.retry_after_s)
        self._tenants.note(tenant, num_jobs)

    def _count(self, submission: Submission, missed_tokens: int) -> None:
        num_jobs = len(submission.generations)
        self.counters.submitted += num_jobs
        self.counters.missed_tokens += num_jobs * missed_tokens

    async def _publish(
        self,
        submission: Submission,
        parts: JobParts,
        grammars: Sequence[TensorTicket | None],
        bucket: Bucket,
        admitted: Admitted,
    ) -> bool:
        """Whether any of the jobs was not there already.

        A failure half-way is no business of this place: whoever asked cancels all of it, or asks
        again, and must not be refused for a cancel of ours then.
        """
        num_new = 0
        subject = subjects.prefill_jobs(self._settings.pool, bucket)
        timeout_s = min(self._settings.publish_timeout_s, self._left_s(submission))
        for generation, grammar in zip(submission.generations, grammars, strict=True):
            job = job_to_wire(generation, parts, grammar)
            msg_id = job_id(generation)
            try:
                is_new = await self._queue.publish(subject, job, msg_id=msg_id, timeout_s=timeout_s)
            except DeadlineExceeded as error:
                raise NoCapacity("the work queue did not answer in time") from error
            admitted.note_published(is_new=is_new)
            num_new += is_new
        return num_new > 0


def _describe(submission: Submission, bucket: Bucket, match: PrefixMatch) -> None:
    """What the trace of a request says about its way into the queue."""
    trace.get_current_span().set_attributes(
        {
            "rorqual.request_id": submission.request_id,
            "rorqual.bucket": bucket.value,
            "rorqual.num_jobs": len(submission.generations),
            "rorqual.num_prompt_tokens": submission.num_prompt_tokens,
            "rorqual.num_images": len(submission.images),
            "rorqual.num_matched_blocks": match.num_blocks,
            "rorqual.miss_reason": match.miss_reason,
        }
    )
