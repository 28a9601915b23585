"""A decode group whose ranks step together: how even a placement rule keeps their steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rorqual_policy.placement import PlacementParams

from rorqual_sim.compiled import compiled

_WARM_SHARE = 0.25


class DecodeRule(NamedTuple):
    """A request goes to the rank with the least per_request * requests + per_kv_token * KV tokens;
    round_robin instead takes them in turn."""

    per_request: float
    per_kv_token: float
    is_round_robin: bool = False


ROUND_ROBIN = DecodeRule(0.0, 0.0, True)
REQUESTS_ONLY = DecodeRule(1.0, 0.0)
KV_ONLY = DecodeRule(0.0, 1.0)


def estimated_step(params: PlacementParams) -> DecodeRule:
    """What `choose_decode` compares: the estimated step, whose constant part all share."""
    return DecodeRule(params.per_request_s, params.per_kv_token_s)


@dataclass(frozen=True)
class StepBalance:
    """Mean over steps of the longest rank's time, over the mean over steps of the ranks' mean."""

    variable: float
    """Of the part of the step that depends on the rank's requests."""
    whole: float
    batch_per_rank: float


def simulate_decode(
    input_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    *,
    rule: DecodeRule,
    params: PlacementParams,
    num_ranks: int,
    batch_per_rank: float,
    duration_s: float,
    seed: int,
) -> StepBalance:
    """Poisson arrivals with lengths drawn from the arrays, as many as keep batch_per_rank running.

    One token a request and step; a step takes as long as the slowest rank's. The first quarter is
    not counted.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    usable = np.flatnonzero(output_tokens > 0)
    mean_kv = float((input_tokens[usable] + output_tokens[usable] / 2).mean())
    step_s = params.base_s + batch_per_rank * (
        params.per_request_s + params.per_kv_token_s * mean_kv
    )
    life_s = float(output_tokens[usable].mean()) * step_s
    rate = num_ranks * batch_per_rank / life_s
    num = rng.poisson(rate * duration_s)
    arrival_s = np.sort(rng.uniform(0.0, duration_s, num))
    drawn = usable[rng.integers(0, len(usable), num)]
    sums = _run_decode(
        arrival_s,
        input_tokens[drawn].astype(np.float64),
        output_tokens[drawn],
        rule,
        params.base_s,
        params.per_request_s,
        params.per_kv_token_s,
        num_ranks,
        duration_s,
    )
    longest_s, mean_s, batch, steps = sums.tolist()
    return StepBalance(
        variable=longest_s / mean_s,
        whole=(longest_s + steps * params.base_s) / (mean_s + steps * params.base_s),
        batch_per_rank=batch / steps / num_ranks,
    )


@compiled
def _run_decode(
    arrival_s: NDArray[np.float64],
    input_tokens: NDArray[np.float64],
    output_tokens: NDArray[np.int64],
    rule: DecodeRule,
    base_s: float,
    per_request_s: float,
    per_kv_token_s: float,
    num_ranks: int,
    duration_s: float,
) -> NDArray[np.float64]:
    longest_output = output_tokens.max() + 2
    # leaving[s % size, r]: requests and KV tokens that rank r loses at the end of step s.
    leaving = np.zeros((longest_output, num_ranks, 2))
    requests = np.zeros(num_ranks)
    kv_tokens = np.zeros(num_ranks)
    sums = np.zeros(4)
    now_s, step, job = 0.0, 0, 0
    while now_s < duration_s:
        while job < len(arrival_s) and arrival_s[job] <= now_s:
            rank = _choose(rule, job, requests, kv_tokens)
            requests[rank] += 1
            kv_tokens[rank] += input_tokens[job]
            last = (step + output_tokens[job] - 1) % longest_output
            leaving[last, rank, 0] += 1
            leaving[last, rank, 1] += input_tokens[job] + output_tokens[job]
            job += 1
        variable_s = per_request_s * requests + per_kv_token_s * kv_tokens
        if now_s >= _WARM_SHARE * duration_s:
            sums[0] += variable_s.max()
            sums[1] += variable_s.mean()
            sums[2] += requests.sum()
            sums[3] += 1
        kv_tokens += requests
        gone = leaving[step % longest_output]
        requests -= gone[:, 0]
        kv_tokens -= gone[:, 1]
        gone[:] = 0.0
        now_s += base_s + variable_s.max()
        step += 1
    return sums


@compiled
def _choose(
    rule: DecodeRule, job: int, requests: NDArray[np.float64], kv_tokens: NDArray[np.float64]
) -> int:
    if rule.is_round_robin:
        return job % len(requests)
    best, best_cost = 0, np.inf
    for rank in range(len(requests)):
        cost = rule.per_request * requests[rank] + rule.per_kv_token * kv_tokens[rank]
        if cost < best_cost:
            best, best_cost = rank, cost
    return best
