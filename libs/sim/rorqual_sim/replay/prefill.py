"""Prefill groups of a replay: pull, plan a step, say what it ends."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from rorqual_policy.buckets import BUCKET_LIMITS_TOKENS
from rorqual_policy.chunking import StepPlan, WaitingSequence, plan_chunks
from rorqual_policy.prefill_order import (
    FIRST_COME,
    choose_least,
    choose_pull_queue,
    fits_beside,
    has_spare_compute,
    prefill_key_s,
)
from rorqual_policy.prefill_policy import (
    PREFILL_POLICIES,
    BucketMode,
    PrefillPolicy,
    assign_groups,
)
from rorqual_policy.step_cost import (
    StepBudget,
    checked_budget,
    chunk_cost_s,
    step_budget_s,
)

from rorqual_sim.replay.options import ReplayOptions
from rorqual_sim.replay.push import PUSH_RULES, Arrival
from rorqual_sim.replay.requests import Request

NUM_QUEUES = len(BUCKET_LIMITS_TOKENS) + 1
INF = float("inf")


@dataclass
class Group:
    """One prefill instance: ranks in lockstep."""

    number: int
    num_ranks: int
    incarnation: int = 0
    is_up: bool = True
    is_draining: bool = False
    own_queue: int = 0
    end_s: float = INF
    """When its step ends; infinity while it waits for work."""
    link_free_s: float = 0.0
    busy_s: float = 0.0
    ranks: list[deque[Request]] = field(default_factory=list)
    pending_s: list[float] = field(default_factory=list)
    ending: list[tuple[int, Request]] = field(default_factory=list)
    """Ranks and requests that the step under way finishes."""

    def __post_init__(self) -> None:
        self.ranks = [deque() for _ in range(self.num_ranks)]
        self.pending_s = [0.0] * self.num_ranks

    @property
    def is_empty(self) -> bool:
        return not self.ending and not any(self.ranks)

    def held(self, rank: int) -> list[Request]:
        """What a rank has, requests that the step under way finishes among it."""
        ending = (request for of_rank, request in self.ending if of_rank == rank)
        return [*ending, *self.ranks[rank]]

    def give_up(self) -> list[Request]:
        """Everything it had, when it is gone."""
        lost = [request for rank in range(self.num_ranks) for request in self.held(rank)]
        self.incarnation += 1
        self.is_up, self.end_s, self.ending = False, INF, []
        self.__post_init__()
        return lost


def _policy(options: ReplayOptions) -> PrefillPolicy:
    """Comparators fill steps of the longest time in order of arrival."""
    if options.policy in PREFILL_POLICIES:
        return PREFILL_POLICIES[options.policy](options.cost, options.step_limit_s)
    budget = StepBudget(options.step_limit_s, options.step_limit_s)
    return PrefillPolicy(options.policy, BucketMode.POOLED, FIRST_COME, budget)


class PrefillFleet:
    """The central queues and the groups that pull from them."""

    def __init__(
        self, options: ReplayOptions, work_shares: list[float], longest_tokens: int
    ) -> None:
        """Raises: ValueError where a step can't compute one token of the longest prompt."""
        self._options = options
        self.policy = _policy(options)
        checked_budget(options.cost, self.policy.budget, longest_tokens)
        self._rule = PUSH_RULES.get(options.policy)
        self._random = Random(options.seed)
        self._shares = work_shares
        self._queues: list[list[tuple[float, int, Request]]] = [[] for _ in range(NUM_QUEUES)]
        self.queued_s = [0.0] * NUM_QUEUES
        self.num_queued = 0
        self.groups: list[Group] = []
        for _ in range(options.num_prefill):
            self.add_group()

    def add_group(self) -> Group:
        """One more instance, ready for work."""
        group = Group(len(self.groups), self._options.ranks_per_group)
        self.groups.append(group)
        self.assign()
        return group

    def assign(self) -> None:
        """Share the groups that are there among the buckets; call after each change."""
        up = [group for group in self.groups if group.is_up and not group.is_draining]
        if up:
            own = assign_groups(self._shares, len(up))
            for group, queue in zip(up, own, strict=True):
                group.own_queue = queue

    @property
    def is_strict(self) -> bool:
        """Fewer groups than buckets with work can't keep to them."""
        used = sum(share > 0 for share in self._shares)
        num_up = sum(group.is_up and not group.is_draining for group in self.groups)
        return self.policy.buckets is BucketMode.STRICT and num_up >= used

    @property
    def rank_cache_s(self) -> float:
        """How long ranks keep pages of their own; 0 = they share a store."""
        given = self._options.rank_cache_s
        return given if given is not None else self._rule.cache_s if self._rule else 0.0

    def choose_holder(
        self, request: Request, cached_tokens: Callable[[tuple[int, int]], int]
    ) -> tuple[int, int] | None:
        """Group and rank that a comparator pushes the request to; None where groups pull, or while
        no group is up."""
        ranks = [
            (group, rank)
            for group in self.groups
            if group.is_up and not group.is_draining
            for rank in range(group.num_ranks)
        ]
        if self._rule is None or not ranks:
            return None
        held = [group.held(rank) for group, rank in ranks]
        arrival = Arrival(
            number=request.number,
            input_tokens=request.input_tokens,
            picks=(self._random.randrange(len(ranks)), self._random.randrange(len(ranks))),
            num_requests=[len(requests) for requests in held],
            to_do_tokens=[sum(r.remaining_tokens for r in requests) for requests in held],
            active_tokens=[sum(r.input_tokens for r in requests) for requests in held],
            cached_tokens=[cached_tokens((group.number, rank)) for group, rank in ranks],
        )
        group, rank = ranks[self._rule.choose(arrival)]
        return group.number, rank

    def enqueue(self, request: Request, now_s: float) -> Group | None:
        """Queue or push it; the idle group that should look for work now."""
        if request.holder is not None:
            group = self.groups[request.holder[0]]
            self._give(group, request.holder[1], request, now_s)
            return group if group.end_s == INF else None
        key_s = prefill_key_s(request.arrival_s, request.estimate_s, self.policy.order)
        heapq.heappush(self._queues[request.bucket], (key_s, request.number, request))
        self.queued_s[request.bucket] += request.estimate_s
        self.num_queued += 1
        idle = [g for g in self.groups if g.is_up and not g.is_draining and g.end_s == INF]
        own = [group for group in idle if group.own_queue == request.bucket]
        return next(iter(own if own or self.is_strict else idle), None)

    def begin_step(self, group: Group, now_s: float, slowdown: float = 1.0) -> float:
        """Pull and plan; when to look at this group again, infinity = when work comes."""
        budget_s = self._budget_s(group)
        if not group.is_draining:
            self._pull(group, budget_s, now_s)
        longest_s = 0.0
        for rank in range(group.num_ranks):
            longest_s = max(longest_s, self._fill(group, rank, budget_s, now_s))
        if longest_s > 0.0:
            took_s = slowdown * (self._options.cost.a0_s + longest_s)
            group.end_s = now_s + took_s
            group.busy_s += took_s
        else:  # nothing to do until what is being fetched has come
            group.end_s = min((r.ready_s for rank in group.ranks for r in rank), default=INF)
        return group.end_s

    def _budget_s(self, group: Group) -> float:
        served = [group.own_queue] if self.is_strict else range(NUM_QUEUES)
        up = [g for g in self.groups if g.is_up and not g.is_draining]
        if self.is_strict:
            up = [g for g in up if g.own_queue == group.own_queue]
        waiting_s = sum(self.queued_s[queue] for queue in served)
        num_ranks = max(1, len(up)) * self._options.ranks_per_group
        return step_budget_s(self._options.cost, self.policy.budget, waiting_s, num_ranks)

    def _pull(self, group: Group, budget_s: float, now_s: float) -> None:
        cost = self._options.cost
        while True:
            heads = [queue[0][0] if queue else INF for queue in self._queues]
            queue = choose_pull_queue(
                heads, group.own_queue, self.is_strict, self.policy.own_lead_s
            )
            rank = choose_least(group.pending_s)
            if queue < 0:
                return
            if not has_spare_compute(group.pending_s[rank], budget_s, cost.a0_s):
                break
            self._take(group, queue, rank, now_s)
        if self.policy.shared_part > 0:
            self._pull_beside(group, budget_s, now_s)

    def _pull_beside(self, group: Group, budget_s: float, now_s: float) -> None:
        """Ranks without spare compute take what they had better do beside their long prompt."""
        room_s = budget_s - self._options.cost.a0_s
        up = [g for g in self.groups if g.is_up and not g.is_draining]
        free_s = min(
            (0.0 if g is group or g.end_s == INF else g.end_s - now_s) + min(g.pending_s)
            for g in up
        )
        while True:
            ranks = [self._rank_beside(group, queue, room_s, free_s) for queue in self._queues]
            heads = [
                queue[0][0] if rank is not None else INF
                for queue, rank in zip(self._queues, ranks, strict=True)
            ]
            queue = choose_pull_queue(
                heads, group.own_queue, self.is_strict, self.policy.own_lead_s
            )
            if queue < 0 or (rank := ranks[queue]) is None:
                return
            self._take(group, queue, rank, now_s)

    def _rank_beside(
        self,
        group: Group,
        queue: list[tuple[float, int, Request]],
        room_s: float,
        free_s: float,
    ) -> int | None:
        """The rank that would finish the first prompt of the queue first; None if there is none."""
        best, least_s = None, INF
        for rank in range(group.num_ranks if queue else 0):
            longest_s = max((r.left_s for r in group.ranks[rank]), default=0.0)
            others_s, work_s = group.pending_s[rank] - longest_s, queue[0][2].estimate_s
            part, after_s = self.policy.shared_part, free_s + work_s
            if others_s < least_s and fits_beside(
                others_s, longest_s, work_s, room_s, part, after_s
            ):
                best, least_s = rank, others_s
        return best

    def _take(self, group: Group, queue: int, rank: int, now_s: float) -> None:
        _, _, request = heapq.heappop(self._queues[queue])
        self.queued_s[queue] = max(0.0, self.queued_s[queue] - request.estimate_s)
        self.num_queued -= 1
        self._give(group, rank, request, now_s)

    def _give(self, group: Group, rank: int, request: Request, now_s: float) -> None:
        request.left_s = chunk_cost_s(
            self._options.cost, request.remaining_tokens, request.context_tokens
        )
        is_here = request.holder is not None and self.rank_cache_s > 0
        request.ready_s = now_s if is_here else self._fetch(group, request, now_s)
        group.ranks[rank].append(request)
        group.pending_s[rank] += request.left_s

    def _fetch(self, group: Group, request: Request, now_s: float) -> float:
        """When the stored KV is there: the group's link carries one request after the other."""
        if request.context_tokens == 0:
            return now_s
        num_bytes = request.context_tokens * self._options.kv_bytes_per_token
        start_s = max(now_s, group.link_free_s)
        group.link_free_s = start_s + num_bytes / self._options.fetch_bytes_per_s
        return group.link_free_s + self._options.fetch_setup_s

    def _fill(self, group: Group, rank: int, budget_s: float, now_s: float) -> float:
        """Plan this rank's chunks over what has been fetched; seconds of work."""
        ready = {str(r.number): r for r in group.ranks[rank] if r.ready_s <= now_s}
        if not ready:
            return 0.0
        waiting = [
            WaitingSequence(name, r.remaining_tokens, r.context_tokens, r.arrival_s)
            for name, r in ready.items()
        ]
        spare_s = budget_s - self._options.cost.a0_s
        plan = StepPlan(
            self._options.cost,
            spare_s,
            self._options.step_tokens,
            self.policy.order,
            self.policy.shared_part,
        )
        work_s = sum(
            self._advance(group, rank, ready[chunk.sequence_id], chunk.num_tokens)
            for chunk in plan_chunks(waiting, plan)
        )
        group.ranks[rank] = deque(r for r in group.ranks[rank] if r.remaining_tokens)
        return work_s

    def _advance(self, group: Group, rank: int, request: Request, tokens: int) -> float:
        """Compute so many tokens of a request of the rank; seconds."""
        chunk_s = chunk_cost_s(self._options.cost, tokens, request.context_tokens)
        request.remaining_tokens -= tokens
        request.context_tokens += tokens
        part_s = min(chunk_s, request.left_s) if request.remaining_tokens else request.left_s
        request.left_s -= part_s
        group.pending_s[rank] = max(0.0, group.pending_s[rank] - part_s)
        if not request.remaining_tokens:
            group.ending.append((rank, request))
        return chunk_s
