"""The two named ways of sharing prefill work among groups: `deepseek` and `rorqual`."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import floor, inf

from rorqual_policy.prefill_order import FIRST_COME, SHORT_FIRST, PrefillOrder
from rorqual_policy.step_cost import StepBudget, StepCost, adaptive_budget

STEP_LIMIT_S = 0.273
"""Longest step. Source: 16K tokens at 60K tokens/s, scheduling study section 2."""


class BucketMode(StrEnum):
    """What length buckets mean to a group that pulls."""

    POOLED = "pooled"
    """One queue for all lengths."""
    SPILL = "spill"
    """A group serves its own bucket first, the others when that is empty."""
    STRICT = "strict"
    """A group serves its own bucket only."""


@dataclass(frozen=True, slots=True)
class PrefillPolicy:
    """How queued prompts are shared: every group pulls when it has spare compute."""

    name: str
    buckets: BucketMode
    order: PrefillOrder
    budget: StepBudget
    own_lead_s: float = inf
    """While spilling, a group prefers its own bucket to prompts no more than this ahead of it in
    the order; infinity: as long as there is anything in it."""
    shared_part: float = 0.0
    """Of a step, kept for the shortest prompts in hand: one that fits into it is pulled beside a
    long one that is under way. 0: what has begun goes on alone."""


def deepseek_policy(cost: StepCost, limit_s: float = STEP_LIMIT_S) -> PrefillPolicy:
    """As published: a group belongs to one length bucket, pulls in order of arrival and fills its
    steps up to a fixed time."""
    return PrefillPolicy("deepseek", BucketMode.STRICT, FIRST_COME, StepBudget(limit_s, limit_s))


_OWN_LEAD_S = 0.25
"""About one longest step. With a strict preference long prompts of a group's own bucket would go
before short ones of the others in a burst: 3.4 % of requests late instead of under 1 %."""


def rorqual_policy(cost: StepCost, limit_s: float = STEP_LIMIT_S) -> PrefillPolicy:
    """Groups help each other, short work goes first with bounded starvation, and steps are as long
    as the load needs."""
    return PrefillPolicy(
        "rorqual",
        BucketMode.SPILL,
        SHORT_FIRST,
        adaptive_budget(cost, limit_s),
        own_lead_s=_OWN_LEAD_S,
        shared_part=0.5,
    )


PREFILL_POLICIES = {"deepseek": deepseek_policy, "rorqual": rorqual_policy}


def assign_groups(work_shares: Sequence[float], num_groups: int) -> list[int]:
    """For each group the bucket it is assigned to, in proportion to the buckets' estimated work.

    Largest remainders; a bucket with any work gets at least one group while there are enough. With
    fewer groups than such buckets the heaviest ones get them: only spilling serves the rest.

    Raises: ValueError unless there is a group and a positive share, and no negative one.
    """
    total = sum(work_shares)
    if num_groups < 1 or total <= 0 or min(work_shares) < 0:
        raise ValueError(f"need groups and shares >= 0; got {num_groups}, {list(work_shares)}")
    used = [i for i, share in enumerate(work_shares) if share > 0]
    wanted = {i: work_shares[i] / total * num_groups for i in used}
    counts = {i: max(1, floor(wanted[i])) for i in used}
    while sum(counts.values()) > num_groups:
        # Too many forced ones: take from whoever has most over its share, the last of equal ones.
        dearest = max((i for i in used if counts[i]), key=lambda i: (counts[i] - wanted[i], i))
        shrinkable = [i for i in used if counts[i] > 1]
        if shrinkable:
            dearest = max(shrinkable, key=lambda i: (counts[i] - wanted[i], i))
        counts[dearest] -= 1
    while sum(counts.values()) < num_groups:
        poorest = max(used, key=lambda i: (wanted[i] - counts[i], -i))
        counts[poorest] += 1
    return [i for i in used for _ in range(counts[i])]
