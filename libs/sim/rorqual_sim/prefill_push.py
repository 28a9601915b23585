"""Requests that are pushed to a rank when they arrive, and the pages that ranks keep."""

from __future__ import annotations

import numpy as np
from rorqual_policy.step_cost import chunk_cost_s

from rorqual_sim.comparators import (
    cache_aware,
    kv_cost,
    least_requests,
    lmetric,
    power_of_two,
    round_robin,
)
from rorqual_sim.compiled import compiled
from rorqual_sim.prefill_state import (
    CACHE_AWARE,
    LEAST_REQUESTS,
    LEAST_WORK,
    LMETRIC,
    POWER_OF_TWO,
    ROUND_ROBIN,
    Caches,
    Groups,
    Jobs,
    LoopParams,
    Ranks,
)


@compiled
def place(
    params: LoopParams, job: int, jobs: Jobs, ranks: Ranks, groups: Groups, caches: Caches
) -> int:
    """Rank of a request that has arrived; where ranks keep pages of their own, the request's
    cached tokens become those of that rank."""
    if params.cache_s > 0.0:
        match(params, job, jobs, caches)
    rank = choose_rank(params, job, jobs, ranks, groups, caches)
    if params.cache_s > 0.0:
        touch(job, rank, jobs, params.cache_s, caches)
        cached = min(caches.depth[rank] * params.page_tokens, jobs.input_tokens[job] - 1)
        jobs.context_tokens[job] = cached
        jobs.remaining_tokens[job] = jobs.input_tokens[job] - cached
        jobs.estimate_s[job] = chunk_cost_s(params.cost, jobs.remaining_tokens[job], cached)
    return rank


@compiled
def choose_rank(
    params: LoopParams, job: int, jobs: Jobs, ranks: Ranks, groups: Groups, caches: Caches
) -> int:
    num_requests, input_tokens = ranks.num_requests, jobs.input_tokens[job]
    if params.placement == ROUND_ROBIN:
        return round_robin(job, len(num_requests))
    if params.placement == LEAST_REQUESTS:
        return least_requests(num_requests)
    if params.placement == POWER_OF_TWO:
        return power_of_two(num_requests, int(jobs.picks[job, 0]), int(jobs.picks[job, 1]))
    if params.placement == LEAST_WORK:
        return least_work(params, jobs.arrival_s[job], ranks, groups)
    cached_tokens = caches.depth * params.page_tokens
    if params.placement == CACHE_AWARE:
        return cache_aware(num_requests, cached_tokens, input_tokens)
    if params.placement == LMETRIC:
        return lmetric(ranks.pending_tokens, num_requests, cached_tokens, input_tokens)
    return kv_cost(ranks.pending_tokens, ranks.active_tokens, cached_tokens, input_tokens)


@compiled
def least_work(params: LoopParams, now_s: float, ranks: Ranks, groups: Groups) -> int:
    """The rank that would have done its work first: what is left of its step, then its queue."""
    best, best_s = 0, np.inf
    for group in range(params.num_groups):
        end_s = groups.end_s[group]
        step_s = end_s - now_s if end_s < np.inf else 0.0
        first = group * params.ranks_per_group
        for rank in range(first, first + params.ranks_per_group):
            until_s = step_s + ranks.pending_s[rank]
            if until_s < best_s:
                best, best_s = rank, until_s
    return best


@compiled
def match(params: LoopParams, job: int, jobs: Jobs, caches: Caches) -> None:
    """Write how many leading pages of the request each rank still has."""
    caches.depth[:] = 0
    base = np.int64(caches.copy[job]) * caches.num_pages
    request = caches.source[job]
    oldest_s = jobs.arrival_s[job] - params.cache_s
    first = caches.page_start[request]
    for index in range(first, caches.page_start[request + 1]):
        entry = caches.first[base + caches.pages[index]]
        is_matched = False
        while entry > 0:
            rank = caches.rank[entry]
            if caches.depth[rank] == index - first and caches.touched_s[entry] >= oldest_s:
                caches.depth[rank] += 1
                is_matched = True
            entry = caches.next[entry]
        if not is_matched:
            return


@compiled
def touch(job: int, rank: int, jobs: Jobs, cache_s: float, caches: Caches) -> None:
    """The rank has the request's pages now; an entry that is out of date is used again."""
    base = np.int64(caches.copy[job]) * caches.num_pages
    request = caches.source[job]
    now_s = jobs.arrival_s[job]
    for index in range(caches.page_start[request], caches.page_start[request + 1]):
        page = base + caches.pages[index]
        entry, found, spare = caches.first[page], 0, 0
        while entry > 0:
            if caches.rank[entry] == rank:
                found = entry
                break
            if caches.touched_s[entry] < now_s - cache_s:
                spare = entry
            entry = caches.next[entry]
        if found == 0:
            found = spare
        if found == 0:
            caches.used[0] += 1
            found = caches.used[0]
            caches.next[found] = caches.first[page]
            caches.first[page] = found
        caches.rank[found] = rank
        caches.touched_s[found] = now_s
