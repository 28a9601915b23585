"""Comparators: rules of other systems that push a request to a rank when it arrives.

Each follows a public description; none is used by a service of ours.
"""

from __future__ import annotations

import numpy as np
from rorqual_policy.prefill_order import choose_least
from rorqual_policy.step_cost import chunk_cost_s

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

_MATCH_SHARE = 0.3
_IMBALANCE = 64
_IMBALANCE_RATIO = 1.5


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
    num_ranks = len(ranks.pending_s)
    if params.placement == ROUND_ROBIN:
        return job % num_ranks
    if params.placement == LEAST_REQUESTS:
        return choose_least(ranks.num_requests)
    if params.placement == POWER_OF_TWO:
        one, other = int(jobs.picks[job, 0]), int(jobs.picks[job, 1])
        return one if ranks.num_requests[one] <= ranks.num_requests[other] else other
    if params.placement == LEAST_WORK:
        return least_work(params, jobs.arrival_s[job], ranks, groups)
    if params.placement == CACHE_AWARE:
        return cache_aware(params, job, jobs, ranks, caches)
    return least_kv_cost(params, job, jobs, ranks, caches)


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
def cache_aware(params: LoopParams, job: int, jobs: Jobs, ranks: Ranks, caches: Caches) -> int:
    """The rank with the best match if that is a good one, else the one with fewest requests; the
    latter also while requests are out of balance.

    Source: SGLang model gateway, policies/cache_aware.rs, defaults 0.3 / 64 / 1.5; its tree of text
    is a perfect index of pages here.
    """
    most = np.max(ranks.num_requests)
    least = choose_least(ranks.num_requests)
    fewest = ranks.num_requests[least]
    if most - fewest > _IMBALANCE and most > _IMBALANCE_RATIO * fewest:
        return least
    best = int(np.argmax(caches.depth))
    if caches.depth[best] * params.page_tokens > _MATCH_SHARE * jobs.input_tokens[job]:
        return best
    return least


@compiled
def least_kv_cost(params: LoopParams, job: int, jobs: Jobs, ranks: Ranks, caches: Caches) -> int:
    """KV_COST: least (prefill tokens to do, this request's included) + (tokens of the requests it
    has). LMETRIC: least (prefill tokens to do) * (requests it has + 1).

    Source: Dynamo, router concepts: cost = prefill_load_scale * uncached blocks + decode blocks,
    and its `lmetric` variant; scale 1, temperature 0.
    """
    best, best_cost = 0, np.inf
    for rank in range(len(ranks.pending_s)):
        cached = min(caches.depth[rank] * params.page_tokens, jobs.input_tokens[job] - 1)
        to_do = ranks.pending_tokens[rank] + jobs.input_tokens[job] - cached
        if params.placement == LMETRIC:
            cost = to_do * (ranks.num_requests[rank] + 1.0)
        else:
            cost = to_do + ranks.active_tokens[rank]
        if cost < best_cost:
            best, best_cost = rank, cost
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
