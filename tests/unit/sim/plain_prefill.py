"""The prefill fleet as a plain loop over the policy functions: what the compiled one must equal."""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np
from rorqual_policy.prefill_order import (
    choose_least,
    choose_pull_queue,
    fits_beside,
    has_spare_compute,
    prefill_key_s,
)
from rorqual_policy.prefill_policy import BucketMode, assign_groups
from rorqual_policy.step_cost import chunk_cost_s, solve_chunk_tokens, step_budget_s

INF = float("inf")


class PlainFleet:
    def __init__(self, workload, fleet, policy, cost):
        self.load, self.fleet, self.policy, self.cost = workload, fleet, policy, cost
        self.is_strict = policy.buckets is BucketMode.STRICT
        self.is_pooled = policy.buckets is BucketMode.POOLED
        self.left = (workload.input_tokens - workload.cached_tokens).tolist()
        self.context = workload.cached_tokens.tolist()
        self.queues = [[] for _ in range(4)]
        self.work_s = [0.0] * 4
        self.ranks = [deque() for _ in range(fleet.num_ranks)]
        self.current = [None] * fleet.num_ranks
        self.pending_s = [0.0] * fleet.num_ranks
        self.count_s = {}
        self.pulled = {}
        self.end_s = [INF] * fleet.num_groups
        self.finish_s = np.full(len(workload), np.nan)
        shares = np.bincount(workload.bucket, workload.estimate_s, 4).tolist()
        self.own = (
            [0] * fleet.num_groups if self.is_pooled else assign_groups(shares, fleet.num_groups)
        )

    def run(self):
        arrivals = self.load.arrival_s.tolist()
        job = 0
        while True:
            group = choose_least(self.end_s)
            if job < len(arrivals) and arrivals[job] <= self.end_s[group]:
                woken = self.admit(job)
                if woken is not None:
                    self.begin(woken, arrivals[job])
                job += 1
            elif self.end_s[group] == INF:
                return self.finish_s - self.load.arrival_s
            else:
                self.begin(group, self.end_s[group])

    def admit(self, job):
        queue = 0 if self.is_pooled else int(self.load.bucket[job])
        estimate_s = float(self.load.estimate_s[job])
        key_s = prefill_key_s(float(self.load.arrival_s[job]), estimate_s, self.policy.order)
        heapq.heappush(self.queues[queue], (key_s, job))
        self.work_s[queue] += estimate_s
        idle = [g for g in range(self.fleet.num_groups) if self.end_s[g] == INF]
        own = [g for g in idle if self.own[g] == queue]
        return next(iter(own if own or self.is_strict else idle), None)

    def begin(self, group, now_s):
        size = self.fleet.ranks_per_group
        first = group * size
        budget_s = self.budget_s(group)
        while True:
            heads = [queue[0][0] if queue else INF for queue in self.queues]
            queue = choose_pull_queue(
                heads, self.own[group], self.is_strict, self.policy.own_lead_s
            )
            rank = first + choose_least(self.pending_s[first : first + size])
            if queue < 0:
                break
            if not has_spare_compute(self.pending_s[rank], budget_s, self.cost.a0_s):
                self.take_beside(group, range(first, first + size), now_s, budget_s)
                break
            self.take(queue, rank)
        plans = [self.fill(rank, budget_s) for rank in range(first, first + size)]
        longest_s = max(work_s for work_s, _ in plans)
        self.end_s[group] = now_s + (self.cost.a0_s + longest_s) if longest_s else INF
        for _, done in plans:
            self.finish_s[done] = self.end_s[group]

    def budget_s(self, group):
        served, groups = range(4), self.fleet.num_groups
        if self.is_strict:
            served, groups = [self.own[group]], self.own.count(self.own[group])
        waiting_s = 0.0
        for queue in served:
            waiting_s += self.work_s[queue]
        num_ranks = groups * self.fleet.ranks_per_group
        return step_budget_s(self.cost, self.policy.budget, waiting_s, num_ranks)

    def take(self, queue, rank):
        _, job = heapq.heappop(self.queues[queue])
        left_s = self.work_s[queue] - float(self.load.estimate_s[job])
        self.work_s[queue] = max(0.0, left_s) if self.queues[queue] else 0.0
        self.count_s[job] = chunk_cost_s(self.cost, self.left[job], self.context[job])
        self.ranks[rank].append(job)
        self.pulled[job] = (self.count_s[job], job)
        if self.policy.shared_part:
            self.ranks[rank] = deque(sorted(self.ranks[rank], key=self.pulled.__getitem__))
        self.pending_s[rank] += self.count_s[job]

    def take_beside(self, group, ranks, now_s, budget_s):
        begin_s = [
            0.0 if g == group or end == INF else end - now_s for g, end in enumerate(self.end_s)
        ]
        size = self.fleet.ranks_per_group
        free_s = min(begin_s[r // size] + pending_s for r, pending_s in enumerate(self.pending_s))
        while True:
            takers = [self.taker(queue, ranks, free_s, budget_s) for queue in range(4)]
            keys = [
                queue[0][0] if taker is not None else INF
                for queue, taker in zip(self.queues, takers, strict=True)
            ]
            queue = choose_pull_queue(keys, self.own[group], self.is_strict, self.policy.own_lead_s)
            if queue < 0:
                return
            self.take(queue, takers[queue])

    def taker(self, queue, ranks, free_s, budget_s):
        if not self.queues[queue] or not self.policy.shared_part:
            return None
        work_s = float(self.load.estimate_s[self.queues[queue][0][1]])
        room_s = budget_s - self.cost.a0_s
        longest_s = {r: self.count_s.get(self.current[r], 0.0) for r in ranks}
        others_s = {r: self.pending_s[r] - longest_s[r] for r in ranks}
        part, after_s = self.policy.shared_part, free_s + work_s
        fitting = [
            r
            for r in ranks
            if fits_beside(others_s[r], longest_s[r], work_s, room_s, part, after_s)
        ]
        return min(fitting, key=others_s.__getitem__, default=None)

    def fill(self, rank, budget_s):
        room_s, work_s, done, waiting = budget_s - self.cost.a0_s, 0.0, [], self.ranks[rank]
        part_of = self.policy.shared_part
        while part_of and self.current[rank] is not None and waiting:
            job = waiting[0]
            if self.count_s[job] >= self.count_s[self.current[rank]]:
                break
            part = 1.0 if self.urgency(job) < self.urgency(self.current[rank]) else part_of
            chunk_s = self.advance(rank, job, part * room_s - work_s)
            work_s += chunk_s
            if not chunk_s or self.left[job]:
                break
            done.append(waiting.popleft())
        while self.current[rank] is not None or waiting:
            job = waiting[0] if self.current[rank] is None else self.current[rank]
            chunk_s = self.advance(rank, job, room_s - work_s)
            work_s += chunk_s
            if not chunk_s:
                break
            if self.current[rank] is None:
                self.current[rank] = waiting.popleft()
            if self.left[job]:
                break
            self.current[rank] = None
            done.append(job)
        return work_s, done

    def urgency(self, job):
        return prefill_key_s(float(self.load.arrival_s[job]), self.count_s[job], self.policy.order)

    def advance(self, rank, job, spare_s):
        tokens = solve_chunk_tokens(self.cost, self.left[job], self.context[job], spare_s)
        if not tokens:
            return 0.0
        chunk_s = chunk_cost_s(self.cost, tokens, self.context[job])
        self.left[job] -= tokens
        self.context[job] += tokens
        part_s = min(chunk_s, self.count_s[job]) if self.left[job] else self.count_s[job]
        self.count_s[job] -= part_s
        self.pending_s[rank] = max(0.0, self.pending_s[rank] - part_s)
        return chunk_s


def plain_prefill(workload, fleet, policy, cost):
    """Waiting times of every request."""
    return PlainFleet(workload, fleet, policy, cost).run()
