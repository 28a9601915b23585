"""The prefill fleet as a compiled event loop: groups of ranks in lockstep, pulled or pushed work.

Order of events at one time: arrivals first, then groups by number. Everything else is decided by
policy functions.
"""

from __future__ import annotations

import numpy as np
from rorqual_policy.prefill_order import (
    choose_least,
    choose_pull_queue,
    fits_beside,
    has_spare_compute,
    prefill_key_s,
)
from rorqual_policy.step_cost import chunk_cost_s, solve_chunk_tokens, step_budget_s

from rorqual_sim.compiled import compiled
from rorqual_sim.heaps import pop, push
from rorqual_sim.prefill_push import place
from rorqual_sim.prefill_state import (
    PULL,
    Caches,
    Groups,
    Jobs,
    LoopParams,
    Queues,
    Ranks,
    Stats,
)


@compiled
def run_prefill(
    params: LoopParams,
    jobs: Jobs,
    queues: Queues,
    ranks: Ranks,
    groups: Groups,
    caches: Caches,
    stats: Stats,
) -> None:
    """Run until every job is done; writes jobs.finish_s and stats."""
    num_jobs = len(jobs.arrival_s)
    next_job = 0
    while True:
        group = choose_least(groups.end_s)
        now_s = groups.end_s[group]
        if next_job < num_jobs and jobs.arrival_s[next_job] <= now_s:
            now_s = jobs.arrival_s[next_job]
            group = admit(params, next_job, jobs, queues, ranks, groups, caches)
            next_job += 1
            if group < 0:
                continue
        elif now_s == np.inf:
            return
        else:
            end_step(params, group, ranks)
        begin_step(params, group, now_s, jobs, queues, ranks, groups, stats)


@compiled
def admit(
    params: LoopParams,
    job: int,
    jobs: Jobs,
    queues: Queues,
    ranks: Ranks,
    groups: Groups,
    caches: Caches,
) -> int:
    """Queue or place a job that has arrived; the idle group that should begin a step, or -1."""
    jobs.key_s[job] = prefill_key_s(jobs.arrival_s[job], jobs.estimate_s[job], params.order)
    if params.placement == PULL:
        enqueue(job, jobs, queues)
        return idle_group(params, jobs.queue[job], groups)
    rank = place(params, job, jobs, ranks, groups, caches)
    jobs.left_s[job] = jobs.estimate_s[job]
    give(rank, job, jobs, ranks)
    group = rank // params.ranks_per_group
    return group if groups.end_s[group] == np.inf else -1


@compiled
def enqueue(job: int, jobs: Jobs, queues: Queues) -> None:
    queue = jobs.queue[job]
    root = push(queues.root[queue], job, jobs.key_s, jobs.left, jobs.right)
    queues.root[queue] = root
    queues.head_key_s[queue] = jobs.key_s[root]
    queues.work_s[queue] += jobs.estimate_s[job]


@compiled
def idle_group(params: LoopParams, queue: int, groups: Groups) -> int:
    """The first idle group of that queue, else the first one that may help; -1 if none."""
    helper = -1
    for group in range(params.num_groups):
        if groups.end_s[group] == np.inf:
            if groups.own_queue[group] == queue:
                return group
            if helper < 0 and not params.is_strict:
                helper = group
    return helper


@compiled
def give(rank: int, job: int, jobs: Jobs, ranks: Ranks) -> None:
    """Let a rank have the job; jobs.left_s says what it counts for."""
    ranks.root[rank] = push(ranks.root[rank], job, jobs.key_s, jobs.left, jobs.right)
    ranks.pending_s[rank] += jobs.left_s[job]
    ranks.pending_tokens[rank] += jobs.remaining_tokens[job]
    ranks.num_requests[rank] += 1
    ranks.active_tokens[rank] += jobs.input_tokens[job]


@compiled
def end_step(params: LoopParams, group: int, ranks: Ranks) -> None:
    first = group * params.ranks_per_group
    for rank in range(first, first + params.ranks_per_group):
        ranks.pending_tokens[rank] -= ranks.step_tokens[rank]
        ranks.num_requests[rank] -= ranks.step_done[rank]
        ranks.active_tokens[rank] -= ranks.step_done_tokens[rank]


@compiled
def begin_step(
    params: LoopParams,
    group: int,
    now_s: float,
    jobs: Jobs,
    queues: Queues,
    ranks: Ranks,
    groups: Groups,
    stats: Stats,
) -> None:
    """Pull what fits, plan one step and say when it ends; infinity when there is nothing to do."""
    first = group * params.ranks_per_group
    last = first + params.ranks_per_group
    budget_s = group_budget_s(params, group, jobs, queues, ranks, groups)
    waits = True
    if params.placement == PULL:
        waits = pull_for_group(params, group, now_s, budget_s, jobs, queues, ranks, groups)
    longest_s, total_s, least_s, num_done = 0.0, 0.0, np.inf, 0
    for rank in range(first, last):
        work_s, num_done = fill_rank(params, rank, budget_s, jobs, ranks, stats, num_done)
        longest_s = max(longest_s, work_s)
        least_s = min(least_s, work_s)
        total_s += work_s
    if longest_s == 0.0:
        groups.end_s[group] = np.inf
        return
    took_s = params.cost.a0_s + longest_s
    groups.end_s[group] = now_s + took_s
    for index in range(num_done):
        jobs.finish_s[stats.done[index]] = now_s + took_s
    if waits:
        note_step(stats, took_s, total_s, least_s, longest_s, budget_s - params.cost.a0_s)


@compiled
def note_step(
    stats: Stats, took_s: float, total_s: float, least_s: float, longest_s: float, room_s: float
) -> None:
    stats.sums[0] += 1
    stats.sums[1] += took_s
    stats.sums[2] += took_s * took_s
    stats.sums[3] += total_s
    stats.sums[4] = min(stats.sums[4], least_s / room_s)
    stats.sums[5] = max(stats.sums[5], longest_s - room_s)


@compiled
def group_budget_s(
    params: LoopParams, group: int, jobs: Jobs, queues: Queues, ranks: Ranks, groups: Groups
) -> float:
    """Waiting is what nobody has begun: in the queues the group serves, or pushed to its ranks."""
    waiting_s = 0.0
    num_ranks = params.num_groups * params.ranks_per_group
    if params.placement != PULL:
        num_ranks = params.ranks_per_group
        for rank in range(group * num_ranks, (group + 1) * num_ranks):
            waiting_s += ranks.pending_s[rank]
            if ranks.current[rank] >= 0:
                waiting_s -= jobs.left_s[ranks.current[rank]]
    elif params.is_strict:
        own = groups.own_queue[group]
        waiting_s, num_ranks = queues.work_s[own], queues.num_ranks[own]
    else:
        for queue in range(len(queues.work_s)):
            waiting_s += queues.work_s[queue]
    return step_budget_s(params.cost, params.budget, waiting_s, num_ranks)


@compiled
def pull_for_group(
    params: LoopParams,
    group: int,
    now_s: float,
    budget_s: float,
    jobs: Jobs,
    queues: Queues,
    ranks: Ranks,
    groups: Groups,
) -> bool:
    """The least loaded rank takes the next job while it has spare compute; whether jobs it could
    have taken still wait."""
    first = group * params.ranks_per_group
    last = first + params.ranks_per_group
    while True:
        queue = choose_pull_queue(
            queues.head_key_s, groups.own_queue[group], params.is_strict, params.own_lead_s
        )
        if queue < 0:
            return False
        if params.chunk_tokens > 0:
            rank = first + choose_least(ranks.pending_tokens[first:last])
            has_room = ranks.pending_tokens[rank] < params.chunk_tokens
        else:
            rank = first + choose_least(ranks.pending_s[first:last])
            has_room = has_spare_compute(ranks.pending_s[rank], budget_s, params.cost.a0_s)
        if not has_room:
            if params.shared_part > 0:
                pull_beside(params, group, now_s, budget_s, jobs, queues, ranks, groups)
            return True
        pull(params, queue, rank, jobs, queues, ranks)


@compiled
def pull_beside(
    params: LoopParams,
    group: int,
    now_s: float,
    budget_s: float,
    jobs: Jobs,
    queues: Queues,
    ranks: Ranks,
    groups: Groups,
) -> None:
    """Ranks that have no spare compute take what they had better do beside their long prompt."""
    room_s = budget_s - params.cost.a0_s
    free_s = first_free_s(params, group, now_s, ranks, groups)
    while True:
        for queue in range(len(queues.head_key_s)):
            rank = rank_beside(params, group, room_s, free_s, queue, jobs, queues, ranks)
            queues.fitting_rank[queue] = rank
            queues.fitting_key_s[queue] = queues.head_key_s[queue] if rank >= 0 else np.inf
        queue = choose_pull_queue(
            queues.fitting_key_s, groups.own_queue[group], params.is_strict, params.own_lead_s
        )
        if queue < 0:
            return
        pull(params, queue, queues.fitting_rank[queue], jobs, queues, ranks)


@compiled
def first_free_s(
    params: LoopParams, group: int, now_s: float, ranks: Ranks, groups: Groups
) -> float:
    """Seconds until the first rank has done all it has; the group's own begin a step now."""
    first_s = np.inf
    for rank in range(params.num_groups * params.ranks_per_group):
        of_group = rank // params.ranks_per_group
        begin_s = 0.0
        if of_group != group and groups.end_s[of_group] < np.inf:
            begin_s = groups.end_s[of_group] - now_s
        first_s = min(first_s, begin_s + ranks.pending_s[rank])
    return first_s


@compiled
def rank_beside(
    params: LoopParams,
    group: int,
    room_s: float,
    free_s: float,
    queue: int,
    jobs: Jobs,
    queues: Queues,
    ranks: Ranks,
) -> int:
    """The rank of the group that would finish the first prompt of the queue first; -1 if none."""
    if queues.head_key_s[queue] == np.inf:
        return -1
    work_s = jobs.estimate_s[queues.root[queue]]
    best, least_s = -1, np.inf
    first = group * params.ranks_per_group
    for rank in range(first, first + params.ranks_per_group):
        longest_s = jobs.left_s[ranks.current[rank]] if ranks.current[rank] >= 0 else 0.0
        others_s = ranks.pending_s[rank] - longest_s
        if others_s < least_s and fits_beside(
            others_s, longest_s, work_s, room_s, params.shared_part, free_s + work_s
        ):
            best, least_s = rank, others_s
    return best


@compiled
def pull(
    params: LoopParams, queue: int, rank: int, jobs: Jobs, queues: Queues, ranks: Ranks
) -> None:
    job = dequeue(queue, jobs, queues)
    jobs.left_s[job] = chunk_cost_s(
        params.cost, jobs.remaining_tokens[job], jobs.context_tokens[job]
    )
    if params.shared_part > 0:
        jobs.key_s[job] = jobs.left_s[job]
    give(rank, job, jobs, ranks)


@compiled
def dequeue(queue: int, jobs: Jobs, queues: Queues) -> int:
    job = int(queues.root[queue])
    root = pop(job, jobs.key_s, jobs.left, jobs.right)
    queues.num_pulled[0] += 1
    jobs.key_s[job] = queues.num_pulled[0]  # a rank does what it pulled first before the rest
    queues.root[queue] = root
    queues.work_s[queue] = max(0.0, queues.work_s[queue] - jobs.estimate_s[job])
    if root < 0:
        queues.head_key_s[queue] = np.inf
        queues.work_s[queue] = 0.0
    else:
        queues.head_key_s[queue] = jobs.key_s[root]
    return job


@compiled
def fill_rank(
    params: LoopParams,
    rank: int,
    budget_s: float,
    jobs: Jobs,
    ranks: Ranks,
    stats: Stats,
    num_done: int,
) -> tuple[float, int]:
    """Plan this rank's chunks: jobs that are shorter than what is left of the one that has begun,
    of the shared part if it is the more urgent, then that one, then the others in order. Its work
    in seconds, and how many jobs the step ends so far."""
    room_s = budget_s - params.cost.a0_s
    work_s = 0.0
    ranks.step_tokens[rank] = ranks.step_done[rank] = ranks.step_done_tokens[rank] = 0
    while params.shared_part > 0 and ranks.current[rank] >= 0 and ranks.root[rank] >= 0:
        job = ranks.root[rank]
        if jobs.left_s[job] >= jobs.left_s[ranks.current[rank]]:
            break
        part_s = share_of(params, job, ranks.current[rank], jobs) * room_s
        chunk_s = advance(params, rank, job, part_s - work_s, jobs, ranks)
        work_s += chunk_s
        if chunk_s == 0.0 or jobs.remaining_tokens[job] > 0:
            break
        ranks.root[rank] = pop(job, jobs.key_s, jobs.left, jobs.right)
        stats.done[num_done] = job
        num_done += 1
    while ranks.current[rank] >= 0 or ranks.root[rank] >= 0:
        is_new = ranks.current[rank] < 0
        job = ranks.root[rank] if is_new else ranks.current[rank]
        chunk_s = advance(params, rank, job, room_s - work_s, jobs, ranks)
        work_s += chunk_s
        if chunk_s == 0.0:
            break
        if is_new:
            ranks.root[rank] = pop(job, jobs.key_s, jobs.left, jobs.right)
        ranks.current[rank] = job
        if jobs.remaining_tokens[job] > 0:
            break
        ranks.current[rank] = -1
        stats.done[num_done] = job
        num_done += 1
    return work_s, num_done


@compiled
def share_of(params: LoopParams, job: int, begun: int, jobs: Jobs) -> float:
    """Part of a step that a job may have before a longer one that has begun."""
    own_s = prefill_key_s(jobs.arrival_s[job], jobs.left_s[job], params.order)
    begun_s = prefill_key_s(jobs.arrival_s[begun], jobs.left_s[begun], params.order)
    return 1.0 if own_s < begun_s else params.shared_part


@compiled
def advance(
    params: LoopParams, rank: int, job: int, spare_s: float, jobs: Jobs, ranks: Ranks
) -> float:
    """Give a job of a rank as much of the step as fits; its seconds, 0.0 if not a token does."""
    if params.chunk_tokens > 0:
        spare_tokens = params.chunk_tokens - ranks.step_tokens[rank]
        num_tokens = min(jobs.remaining_tokens[job], spare_tokens)
    else:
        num_tokens = solve_chunk_tokens(
            params.cost, jobs.remaining_tokens[job], jobs.context_tokens[job], spare_s
        )
    if num_tokens == 0:
        return 0.0
    chunk_s = chunk_cost_s(params.cost, num_tokens, jobs.context_tokens[job])
    jobs.remaining_tokens[job] -= num_tokens
    jobs.context_tokens[job] += num_tokens
    ranks.step_tokens[rank] += num_tokens
    part_s = min(chunk_s, jobs.left_s[job])
    if jobs.remaining_tokens[job] == 0:
        part_s = jobs.left_s[job]
        ranks.step_done[rank] += 1
        ranks.step_done_tokens[rank] += jobs.input_tokens[job]
    jobs.left_s[job] -= part_s
    ranks.pending_s[rank] = max(0.0, ranks.pending_s[rank] - part_s)
    return chunk_s
