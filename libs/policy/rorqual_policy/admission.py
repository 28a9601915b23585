"""Whether a new request may join the prefill queue."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueState:
    """The prefill queue as seen at submit time."""

    num_queued_jobs: int
    max_queued_jobs: int
    tokens_per_job: float = 0.0
    """Recent mean of compute tokens a job, 0 = not known."""
    tokens_per_s: float = 0.0
    """Compute rate of all prefill instances together, 0 = not measured."""
    num_tenant_jobs: int = 0
    """Of the tenant that asks: those that wait."""
    max_tenant_jobs: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Admission:
    """Yes, or no with the time after which another try makes sense."""

    accepted: bool
    retry_after_s: int
    reason: str
    is_own_fault: bool = False
    """Refused for what the same tenant has waiting, not for what all have."""


MIN_RETRY_AFTER_S = 1
MAX_RETRY_AFTER_S = 60
DEFAULT_RETRY_AFTER_S = 2


def decide_admission(queue: QueueState, num_new_jobs: int) -> Admission:
    """Accept while the queue stays within its cap and the tenant within its own; else name when
    half of the queue will have drained."""
    if queue.num_tenant_jobs + num_new_jobs > queue.max_tenant_jobs:
        reason = f"{queue.num_tenant_jobs} of at most {queue.max_tenant_jobs} jobs wait already"
        return Admission(False, estimate_retry_after_s(queue), reason, is_own_fault=True)
    if queue.num_queued_jobs + num_new_jobs <= queue.max_queued_jobs:
        return Admission(True, 0, f"{queue.num_queued_jobs} of {queue.max_queued_jobs} jobs queued")
    reason = (
        f"{queue.num_queued_jobs} jobs queued, {num_new_jobs} more would pass the limit of "
        f"{queue.max_queued_jobs}"
    )
    return Admission(False, estimate_retry_after_s(queue), reason)


def estimate_retry_after_s(queue: QueueState) -> int:
    """Whole seconds until half of the queue has drained at the present rate, within bounds."""
    if queue.tokens_per_s <= 0 or queue.tokens_per_job <= 0:
        return DEFAULT_RETRY_AFTER_S
    half_s = queue.num_queued_jobs * queue.tokens_per_job / queue.tokens_per_s / 2
    return min(max(math.ceil(half_s), MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
