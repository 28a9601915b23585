"""What the compiled prefill loop works on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rorqual_policy.prefill_order import PrefillOrder
from rorqual_policy.step_cost import StepBudget, StepCost

PULL = 0
ROUND_ROBIN, LEAST_REQUESTS, POWER_OF_TWO, LEAST_WORK = 1, 2, 3, 4
CACHE_AWARE, KV_COST, LMETRIC = 5, 6, 7


class LoopParams(NamedTuple):
    """Fleet and policy of one run."""

    num_groups: int
    ranks_per_group: int
    cost: StepCost
    budget: StepBudget
    order: PrefillOrder
    is_strict: bool
    own_lead_s: float
    shared_part: float
    chunk_tokens: int
    """Tokens a step of a rank; 0 = as many as the cost model fits into the budget."""
    placement: int
    """PULL, or how a request is pushed to a rank when it arrives."""
    cache_s: float
    """Seconds that a rank keeps the pages it touched; 0 = all ranks share one store."""
    page_tokens: int


class Jobs(NamedTuple):
    """One entry a request, in order of arrival."""

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    remaining_tokens: NDArray[np.int64]
    context_tokens: NDArray[np.int64]
    estimate_s: NDArray[np.float64]
    """Work as the router estimates it."""
    left_s: NDArray[np.float64]
    """What is left of the work as whoever holds the job counts it."""
    key_s: NDArray[np.float64]
    queue: NDArray[np.int8]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    finish_s: NDArray[np.float64]
    picks: NDArray[np.int32]
    """[requests, 2] random ranks, for power of two choices."""


class Queues(NamedTuple):
    """The central queues, one a bucket."""

    root: NDArray[np.int64]
    head_key_s: NDArray[np.float64]
    work_s: NDArray[np.float64]
    num_ranks: NDArray[np.int64]
    """Ranks that serve this queue, while strict."""
    num_pulled: NDArray[np.int64]
    """[1] jobs pulled so far."""
    fitting_key_s: NDArray[np.float64]
    """Scratch: head_key_s of those that a rank may take beside its long prompt."""
    fitting_rank: NDArray[np.int64]
    """Scratch: that rank."""


class Ranks(NamedTuple):
    """One entry a rank; rank r is in group r // ranks_per_group."""

    root: NDArray[np.int64]
    """What it has pulled and not begun: the shortest first where steps are shared, else the first
    pulled."""
    current: NDArray[np.int64]
    """The job that has begun and is not done; NONE."""
    pending_s: NDArray[np.float64]
    """Work that it has, without what is in the step under way."""
    pending_tokens: NDArray[np.int64]
    num_requests: NDArray[np.float64]
    active_tokens: NDArray[np.float64]
    """Input tokens of the requests it has."""
    step_tokens: NDArray[np.int64]
    """Like those below: what the end of the step under way takes off."""
    step_done: NDArray[np.int64]
    step_done_tokens: NDArray[np.int64]


class Groups(NamedTuple):
    """One entry a group."""

    end_s: NDArray[np.float64]
    """When its step ends; infinity while idle."""
    own_queue: NDArray[np.int64]


class Caches(NamedTuple):
    """Which rank touched which page when: for each page a list of entries."""

    page_start: NDArray[np.int64]
    """[requests of the trace + 1]"""
    pages: NDArray[np.int32]
    source: NDArray[np.int32]
    """[jobs] the trace's request."""
    copy: NDArray[np.int32]
    """[jobs] which copy of the trace; copies share nothing."""
    num_pages: int
    first: NDArray[np.int32]
    """[copies * num_pages] first entry; 0 = none."""
    next: NDArray[np.int32]
    rank: NDArray[np.int16]
    touched_s: NDArray[np.float32]
    used: NDArray[np.int64]
    """[1] entries in use."""
    depth: NDArray[np.int64]
    """[ranks] pages of the current request that each rank has."""


class Stats(NamedTuple):
    """Sums over steps that began while work waited; see `StepStats`."""

    sums: NDArray[np.float64]
    """[6] steps, seconds, squared seconds, work, smallest fill, largest excess over the budget."""
    done: NDArray[np.int32]
    """Scratch: jobs that end with the step being planned."""
