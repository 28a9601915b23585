"""The waiting line of prefill: every queued prompt, and which one goes to an instance with room.

Per tenant and length bucket the order is that of `prefill_order`, across buckets that of the named
policy, across tenants deficit round robin.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from rorqual_policy.fair_share import FairShare, choose_tenant
from rorqual_policy.prefill_order import (
    NO_QUEUE,
    PrefillOrder,
    choose_least,
    choose_pull_queue,
    fits_beside,
    has_spare_compute,
    prefill_key_s,
)
from rorqual_policy.prefill_policy import BucketMode, PrefillPolicy, assign_groups
from rorqual_policy.step_cost import StepCost, step_budget_s

PRIORITY_LEAD_S = 5.0
"""Seconds of queueing that one level of priority is worth: a low one waits, but not for ever."""

_STALE_RATIO = 2


@dataclass(frozen=True, slots=True)
class WaitingPrompt:
    """A prompt that nobody has begun."""

    job_id: str
    tenant: str
    bucket: int
    """Number of its length bucket, from short to long."""
    arrival_s: float
    work_s: float
    """Estimated seconds of computation on a rank of mean speed: what no cache covers."""
    deadline_s: float = inf
    """On the clock of arrival_s."""
    priority: int = 0
    """Higher goes earlier, by PRIORITY_LEAD_S a level."""


@dataclass(frozen=True, slots=True)
class LineHead:
    """First prompt of one tenant and bucket."""

    job_id: str
    tenant: str
    bucket: int
    key_s: float
    work_s: float


@dataclass(frozen=True, slots=True)
class Puller:
    """An instance that can take on something: slots and pages are free."""

    instance_id: str
    pending_s: float
    """Own seconds of what it has pulled and no step has begun: its next step takes of this."""
    longest_s: float
    """Of these, the longest prompt's."""
    running_s: float = 0.0
    """Of the step under way."""
    speed: float = 1.0
    """Against the fleet's mean."""
    a0_s: float = 0.0
    served: tuple[int, ...] = (0, 1, 2, 3)
    """Buckets it may take from."""


@dataclass(frozen=True, slots=True)
class LineParams:
    """How a decision weighs the line, and what the fleet looks like at that moment."""

    buckets: BucketMode
    own_lead_s: float
    shared_part: float
    """Of a step, kept for prompts that are done in it beside a longer one; 0 = none."""
    budget_s: float
    """Of the next steps, see `step_budget_s`."""
    own_buckets: Mapping[str, int] = field(default_factory=dict)
    """By instance: the bucket it was assigned to."""
    quantum_s: float = 0.25
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of tenants in their fair shares; 1 by default."""


@dataclass(frozen=True, slots=True)
class PullChoice:
    """Who takes which prompt; both None when nothing can be given."""

    instance_id: str | None
    job_id: str | None
    fair: FairShare
    reason: str


def choose_pull(
    heads: Sequence[LineHead], pullers: Sequence[Puller], fair: FairShare, params: LineParams
) -> PullChoice:
    """The next prompt that an instance takes: the least loaded one with room for any has first
    choice; another one takes it instead that has room too and finishes it sooner.

    An instance has room for any prompt while its pulled work does not fill its next step, else for
    one that it had better do beside the longest it has.
    """
    if not heads:
        return PullChoice(None, None, FairShare(), "nothing waits")
    after_s = {
        head.job_id: min((_after_s(p, head) for p in pullers), default=0.0) for head in heads
    }
    left = list(pullers)
    while left:
        puller = left.pop(choose_least([_load(p, heads) for p in left]))
        fitting = [head for head in heads if _has_room(puller, head, after_s, params)]
        if head := _choose_head(fitting, puller, params):
            head, fair, reason = _by_turn(heads, fitting, puller, fair, params, head)
            roomy = [p for p in (puller, *left) if _has_room(p, head, after_s, params)]
            taker = roomy[choose_least([_done_s(p, head, params) for p in roomy])]
            return PullChoice(taker.instance_id, head.job_id, fair, reason)
    return PullChoice(None, None, fair, f"{len(pullers)} instances have no room for what waits")


def _load(puller: Puller, heads: Sequence[LineHead]) -> float:
    """When the instance would be done with the lightest head: a slow one has to be idle longer."""
    return puller.running_s + puller.pending_s + min(head.work_s for head in heads) / puller.speed


def _after_s(puller: Puller, head: LineHead) -> float:
    """When the instance would be done with the prompt after all it has."""
    return puller.running_s + puller.pending_s + head.work_s / puller.speed


def _done_s(puller: Puller, head: LineHead, params: LineParams) -> float:
    """When the instance would be done with the prompt: short work goes before its longest."""
    after_s = _after_s(puller, head)
    return after_s - puller.longest_s if params.shared_part > 0 else after_s


def _has_room(
    puller: Puller, head: LineHead, after_s: Mapping[str, float], params: LineParams
) -> bool:
    if head.bucket not in _open_buckets(puller, params):
        return False
    if has_spare_compute(puller.pending_s, params.budget_s, puller.a0_s):
        return True
    return fits_beside(
        puller.pending_s - puller.longest_s,
        puller.longest_s,
        head.work_s / puller.speed,
        params.budget_s - puller.a0_s,
        params.shared_part,
        after_s[head.job_id] - puller.running_s,
    )


def _open_buckets(puller: Puller, params: LineParams) -> set[int]:
    """With strict buckets its own and those that nobody was assigned to: they would starve."""
    served = set(puller.served)
    if params.buckets is not BucketMode.STRICT:
        return served
    others = {b for who, b in params.own_buckets.items() if who != puller.instance_id}
    return served - (others - {params.own_buckets.get(puller.instance_id, NO_QUEUE)})


def _choose_head(
    fitting: Sequence[LineHead], puller: Puller, params: LineParams
) -> LineHead | None:
    """Across buckets as the policy says."""
    firsts: dict[int, LineHead] = {}
    for head in fitting:
        known = firsts.get(head.bucket)
        if known is None or _order(head) < _order(known):
            firsts[head.bucket] = head
    if not firsts:
        return None
    keys = [firsts[b].key_s if b in firsts else inf for b in range(max(firsts) + 1)]
    own = params.own_buckets.get(puller.instance_id, NO_QUEUE)
    if not 0 <= own < len(keys):
        own = choose_least(keys)
    return firsts[choose_pull_queue(keys, own, is_strict=False, lead_s=params.own_lead_s)]


def _order(head: LineHead) -> tuple[float, str]:
    return head.key_s, head.job_id


def _by_turn(
    heads: Sequence[LineHead],
    fitting: Sequence[LineHead],
    puller: Puller,
    fair: FairShare,
    params: LineParams,
    chosen: LineHead,
) -> tuple[LineHead, FairShare, str]:
    """Between tenants whose turn it is decides; a tenant alone just goes on."""
    firsts = {head.tenant: head for head in heads}
    own = {t: _choose_head([h for h in fitting if h.tenant == t], puller, params) for t in firsts}
    firsts |= {tenant: head for tenant, head in own.items() if head}
    if len(firsts) == 1:
        return chosen, FairShare(), "first in order"
    decision = choose_tenant(
        fair,
        [(tenant, head.work_s) for tenant, head in firsts.items()],
        params.quantum_s,
        params.weights,
        passed_over=[tenant for tenant, head in own.items() if head is None],
    )
    assert decision.tenant is not None
    reason = f"turn of {decision.tenant!r} among {len(firsts)} tenants"
    return firsts[decision.tenant], decision.state, reason


def is_hopeless(prompt: WaitingPrompt, now_s: float) -> bool:
    """Even begun at once the prompt would not be computed by its deadline."""
    return now_s + prompt.work_s >= prompt.deadline_s


class PrefillLine:
    """All waiting prompts in order; adding and removing one take O(log n)."""

    def __init__(self, order: PrefillOrder) -> None:
        self._order = order
        self._prompts: dict[str, WaitingPrompt] = {}
        self._heaps: dict[tuple[str, int], list[tuple[float, str]]] = {}
        self.work_s = 0.0
        """Of everything that waits."""

    def __len__(self) -> int:
        return len(self._prompts)

    def __iter__(self) -> Iterator[WaitingPrompt]:
        return iter(list(self._prompts.values()))

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._prompts

    def add(self, prompt: WaitingPrompt) -> None:
        """The prompt waits from now on; a job id that waits already is replaced."""
        self.remove(prompt.job_id)
        self._prompts[prompt.job_id] = prompt
        self.work_s += prompt.work_s
        heap = self._heaps.setdefault((prompt.tenant, prompt.bucket), [])
        heappush(heap, (self._key_s(prompt), prompt.job_id))

    def remove(self, job_id: str) -> WaitingPrompt | None:
        """It waits no more; None when it did not."""
        prompt = self._prompts.pop(job_id, None)
        if prompt is not None:
            self.work_s = self.work_s - prompt.work_s if self._prompts else 0.0
        return prompt

    def num_by_tenant(self) -> dict[str, int]:
        """How many prompts of each tenant wait."""
        counts: dict[str, int] = {}
        for prompt in self._prompts.values():
            counts[prompt.tenant] = counts.get(prompt.tenant, 0) + 1
        return counts

    def heads(self) -> list[LineHead]:
        """The first prompt of every tenant and bucket that has any."""
        heads = []
        for (tenant, bucket), heap in list(self._heaps.items()):
            while heap and not self._is_current(heap[0], bucket):
                heappop(heap)
            if not heap:
                del self._heaps[tenant, bucket]
                continue
            key_s, job_id = heap[0]
            heads.append(LineHead(job_id, tenant, bucket, key_s, self._prompts[job_id].work_s))
        self._drop_stale()
        return heads

    def _key_s(self, prompt: WaitingPrompt) -> float:
        arrival_s = prompt.arrival_s - PRIORITY_LEAD_S * prompt.priority
        return prefill_key_s(arrival_s, prompt.work_s, self._order)

    def _is_current(self, entry: tuple[float, str], bucket: int) -> bool:
        prompt = self._prompts.get(entry[1])
        return prompt is not None and prompt.bucket == bucket and self._key_s(prompt) == entry[0]

    def _drop_stale(self) -> None:
        """Removed prompts leave their entries behind; all of them go when they are many."""
        num_entries = sum(map(len, self._heaps.values()))
        if num_entries <= _STALE_RATIO * len(self._prompts) + 64:
            return
        for (_, bucket), heap in self._heaps.items():
            heap[:] = [entry for entry in heap if self._is_current(entry, bucket)]
            heapify(heap)


def assign_own_buckets(instance_ids: Iterable[str], work_shares: Sequence[float]) -> dict[str, int]:
    """Bucket of every instance, in proportion to the work that came in each; none without work."""
    ids = sorted(instance_ids)
    if not ids or sum(work_shares) <= 0:
        return {}
    return dict(zip(ids, assign_groups(work_shares, len(ids)), strict=True))


def line_params(
    policy: PrefillPolicy,
    cost: StepCost,
    *,
    waiting_s: float,
    num_ranks: int,
    own_buckets: Mapping[str, int],
    quantum_s: float,
    weights: Mapping[str, float],
) -> LineParams:
    """What a decision needs of the policy and of the fleet as it is now."""
    return LineParams(
        buckets=policy.buckets,
        own_lead_s=policy.own_lead_s,
        shared_part=policy.shared_part,
        budget_s=step_budget_s(cost, policy.budget, waiting_s, max(1, num_ranks)),
        own_buckets=own_buckets,
        quantum_s=quantum_s,
        weights=weights,
    )
