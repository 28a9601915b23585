"""The waiting line of prefill: every queued prompt, and which one goes to an instance with room.

Per tenant and length bucket the order is that of `prefill_order`, across buckets that of the named
policy, across tenants deficit round robin.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from rorqual_policy.buckets import Bucket
from rorqual_policy.fair_share import FairShare, choose_tenant
from rorqual_policy.prefill_order import (
    NO_QUEUE,
    PrefillOrder,
    beside_room_s,
    choose_least,
    choose_pull_queue,
    gains_beside,
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
    rooms = _Rooms(pullers, params)
    for place in rooms.by_load(min(head.work_s for head in heads)):
        fitting = rooms.fitting(place, heads)
        if head := _choose_head(fitting, pullers[place], params):
            head, fair, reason = _by_turn(heads, fitting, pullers[place], fair, params, head)
            return PullChoice(rooms.taker(head).instance_id, head.job_id, fair, reason)
    return PullChoice(None, None, fair, f"{len(pullers)} instances have no room for what waits")


class _Rooms:
    """What each instance could take, by its place among the pullers."""

    def __init__(self, pullers: Sequence[Puller], params: LineParams) -> None:
        self._pullers = pullers
        self._params = params
        self._assigned = set(params.own_buckets.values())
        self._work_s = [self._most_work_s(puller) for puller in pullers]
        self._soonest: list[Puller] | None = None

    def by_load(self, lightest_s: float) -> list[int]:
        """Who has room for so much work, who would be done with it first before the others: a slow
        one has to be idle longer."""
        places = [i for i, work_s in enumerate(self._work_s) if lightest_s <= work_s]
        return sorted(places, key=lambda place: _after_s(self._pullers[place], lightest_s))

    def fitting(self, place: int, heads: Sequence[LineHead]) -> list[LineHead]:
        """Those that the instance has room for."""
        puller, most_s = self._pullers[place], self._work_s[place]
        buckets = self._open_buckets(puller)
        known = [head for head in heads if head.bucket in buckets and head.work_s <= most_s]
        return [head for head in known if most_s == inf or self._gains(puller, head.work_s)]

    def taker(self, head: LineHead) -> Puller:
        """Of all with room for the prompt, the one that is done with it first: short work goes
        before an instance's longest."""
        roomy = [place for place in self.by_load(head.work_s) if self.fitting(place, [head])]
        goes_first = self._params.shared_part > 0
        done_s = [
            _after_s(puller, head.work_s) - (puller.longest_s if goes_first else 0.0)
            for puller in (self._pullers[place] for place in roomy)
        ]
        return self._pullers[roomy[choose_least(done_s)]]

    def _most_work_s(self, puller: Puller) -> float:
        """Of a prompt it has room for, on a rank of mean speed; infinity = of any."""
        params = self._params
        if has_spare_compute(puller.pending_s, params.budget_s, puller.a0_s):
            return inf
        others_s = puller.pending_s - puller.longest_s
        room_s = params.budget_s - puller.a0_s
        beside_s = beside_room_s(others_s, puller.longest_s, room_s, params.shared_part)
        return beside_s * puller.speed

    def _gains(self, puller: Puller, work_s: float) -> bool:
        """Whether doing it beside the longest prompt is worth what that loses."""
        if self._soonest is None:
            self._soonest = _soonest(self._pullers)
        after_s = min(_after_s(other, work_s) for other in self._soonest)
        others_s = puller.pending_s - puller.longest_s
        return gains_beside(others_s, work_s / puller.speed, after_s - puller.running_s)

    def _open_buckets(self, puller: Puller) -> set[int]:
        """With strict buckets its own and those that nobody was assigned to: they would starve."""
        served = set(puller.served)
        if self._params.buckets is not BucketMode.STRICT:
            return served
        own = self._params.own_buckets.get(puller.instance_id, NO_QUEUE)
        return served - (self._assigned - {own})


def _after_s(puller: Puller, work_s: float) -> float:
    """When the instance would be done with so much work after all it has."""
    return puller.running_s + puller.pending_s + work_s / puller.speed


def _soonest(pullers: Sequence[Puller]) -> list[Puller]:
    """Without those that another one beats in being free and in speed: a few, of however many."""
    found: list[Puller] = []
    for puller in sorted(pullers, key=lambda p: (p.running_s + p.pending_s, -p.speed)):
        if not found or puller.speed > found[-1].speed:
            found.append(puller)
    return found


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
    if len(firsts) == 1:
        return chosen, FairShare(), "first in order"
    able: dict[str, list[LineHead]] = {}
    for head in fitting:
        able.setdefault(head.tenant, []).append(head)
    for tenant, theirs in able.items():
        first = _choose_head(theirs, puller, params)
        assert first is not None
        firsts[tenant] = first
    decision = choose_tenant(
        fair,
        [(tenant, head.work_s) for tenant, head in firsts.items()],
        params.quantum_s,
        params.weights,
        passed_over=firsts.keys() - able.keys(),
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
        self._heads: dict[tuple[str, int], LineHead] = {}
        self._touched: dict[tuple[str, int], None] = {}
        """Whose head may be another one; in order, so that the same calls give the same."""
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
        place = prompt.tenant, prompt.bucket
        self._touched[place] = None
        heap = self._heaps.setdefault(place, [])
        heappush(heap, (self._key_s(prompt), prompt.job_id))

    def remove(self, job_id: str) -> WaitingPrompt | None:
        """It waits no more; None when it did not."""
        prompt = self._prompts.pop(job_id, None)
        if prompt is not None:
            self._touched[prompt.tenant, prompt.bucket] = None
            self.work_s = self.work_s - prompt.work_s if self._prompts else 0.0
        return prompt

    def num_by_tenant(self) -> dict[str, int]:
        """How many prompts of each tenant wait."""
        counts: dict[str, int] = {}
        for prompt in self._prompts.values():
            counts[prompt.tenant] = counts.get(prompt.tenant, 0) + 1
        return counts

    def num_by_bucket(self) -> dict[str, int]:
        """How many prompts of each length class wait, those of which none does included."""
        counts = dict.fromkeys(Bucket, 0)
        names = tuple(Bucket)
        for prompt in self._prompts.values():
            counts[names[prompt.bucket]] += 1
        return {str(bucket): number for bucket, number in counts.items()}

    def heads(self) -> list[LineHead]:
        """The first prompt of every tenant and bucket that has any."""
        for place in self._touched:
            if (head := self._first_of(*place)) is not None:
                self._heads[place] = head
            else:
                self._heads.pop(place, None)
                self._heaps.pop(place, None)
        self._touched.clear()
        self._drop_stale()
        return list(self._heads.values())

    def _first_of(self, tenant: str, bucket: int) -> LineHead | None:
        heap = self._heaps.get((tenant, bucket), [])
        while heap and not self._is_current(heap[0], bucket):
            heappop(heap)
        if not heap:
            return None
        key_s, job_id = heap[0]
        return LineHead(job_id, tenant, bucket, key_s, self._prompts[job_id].work_s)

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
