"""The prefill fleet as a compiled event loop: groups of ranks in lockstep, pulled or pushed work.

Order of events at one time: arrivals first, then groups by number. Everything else is decided by
policy functions.
"""

from __future__ import annotations

import numpy as np
from rorqual_policy.prefill_order import (
    choose_least,
    choose_pull_queue,
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
        waits = pull_for_group(params, group, budget_s, jobs, queues, ranks, groups)
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
            return True
        job = dequeue(queue, jobs, queues)
        jobs.left_s[job] = chunk_cost_s(
            params.cost, jobs.remaining_tokens[job], jobs.context_tokens[job]
        )
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
    """Plan this rank's chunks: the job that has begun first, then the others in order. Its work in
    seconds, and how many jobs the step ends so far."""
    room_s = budget_s - params.cost.a0_s
    room_tokens = params.chunk_tokens
    work_s, charged_s, tokens, ended, ended_tokens = 0.0, 0.0, 0, 0, 0
    while True:
        job = ranks.current[rank]
        if job < 0:
            job = ranks.root[rank]
            if job < 0:
                break
        if params.chunk_tokens > 0:
            num_tokens = min(jobs.remaining_tokens[job], room_tokens - tokens)
        else:
            num_tokens = solve_chunk_tokens(
                params.cost,
                jobs.remaining_tokens[job],
                jobs.context_tokens[job],
                room_s - work_s,
            )
        if num_tokens == 0:
            break
        if ranks.current[rank] < 0:
            ranks.root[rank] = pop(job, jobs.key_s, jobs.left, jobs.right)
        chunk_s = chunk_cost_s(params.cost, num_tokens, jobs.context_tokens[job])
        work_s += chunk_s
        tokens += num_tokens
        jobs.remaining_tokens[job] -= num_tokens
        jobs.context_tokens[job] += num_tokens
        if jobs.remaining_tokens[job] > 0:
            ranks.current[rank] = job
            part_s = min(chunk_s, jobs.left_s[job])
            jobs.left_s[job] -= part_s
            charged_s += part_s
            break
        ranks.current[rank] = -1
        charged_s += jobs.left_s[job]
        stats.done[num_done] = job
        num_done += 1
        ended += 1
        ended_tokens += jobs.input_tokens[job]
    ranks.pending_s[rank] = max(0.0, ranks.pending_s[rank] - charged_s)
    ranks.step_tokens[rank] = tokens
    ranks.step_done[rank] = ended
    ranks.step_done_tokens[rank] = ended_tokens
    return work_s, num_done
