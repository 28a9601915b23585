"""The prefill fleet as a plain loop over the policy functions: what the compiled one must equal."""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np
from rorqual_policy.prefill_order import (
    choose_least,
    choose_pull_queue,
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
        self.pending_s = [0.0] * fleet.num_ranks
        self.count_s = {}
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
        self.pending_s[rank] += self.count_s[job]

    def fill(self, rank, budget_s):
        room_s, work_s, charged_s, done = budget_s - self.cost.a0_s, 0.0, 0.0, []
        while self.ranks[rank]:
            job = self.ranks[rank][0]
            tokens = solve_chunk_tokens(
                self.cost, self.left[job], self.context[job], room_s - work_s
            )
            if not tokens:
                break
            chunk_s = chunk_cost_s(self.cost, tokens, self.context[job])
            work_s += chunk_s
            self.left[job] -= tokens
            self.context[job] += tokens
            if self.left[job]:
                part_s = min(chunk_s, self.count_s[job])
                self.count_s[job] -= part_s
                charged_s += part_s
                break
            charged_s += self.count_s[job]
            done.append(self.ranks[rank].popleft())
        self.pending_s[rank] = max(0.0, self.pending_s[rank] - charged_s)
        return work_s, done


def plain_prefill(workload, fleet, policy, cost):
    """Waiting times of every request."""
    return PlainFleet(workload, fleet, policy, cost).run()
