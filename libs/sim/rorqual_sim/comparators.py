"""Comparators: rules of other systems that push a request to a rank when it arrives.

Each follows a public description; none is used by a service of ours. Plain loops over indexable
numbers, one a rank: replays call them, and the compiled loop compiles these very functions. Ties go
to the first rank.
"""

from __future__ import annotations

from rorqual_policy.prefill_order import Numbers, choose_least

_MATCH_SHARE = 0.3
_IMBALANCE = 64
_IMBALANCE_RATIO = 1.5


def round_robin(number: int, num_ranks: int) -> int:
    """In turns. Source: nginx, ngx_http_upstream_module, the default method."""
    return number % num_ranks


def least_requests(num_requests: Numbers) -> int:
    """Fewest requests. Source: Envoy, supported load balancers, weighted least request with all
    hosts compared."""
    return choose_least(num_requests)


def power_of_two(num_requests: Numbers, one: int, other: int) -> int:
    """Of two ranks drawn at random the one with fewer requests.

    Source: Mitzenmacher, The power of two choices in randomized load balancing, 2001.
    """
    return one if num_requests[one] <= num_requests[other] else other


def cache_aware(num_requests: Numbers, cached_tokens: Numbers, input_tokens: int) -> int:
    """The rank with the best match if that is a good one, else the one with fewest requests; the
    latter also while requests are out of balance.

    Source: SGLang model gateway, policies/cache_aware.rs, defaults 0.3 / 64 / 1.5; its tree of text
    is a perfect index of pages here.
    """
    least = choose_least(num_requests)
    most = fewest = num_requests[least]
    best = 0
    for rank in range(len(num_requests)):
        most = max(most, num_requests[rank])
        if cached_tokens[rank] > cached_tokens[best]:
            best = rank
    if most - fewest > _IMBALANCE and most > _IMBALANCE_RATIO * fewest:
        return least
    if cached_tokens[best] > _MATCH_SHARE * input_tokens:
        return best
    return least


def kv_cost(
    to_do_tokens: Numbers, active_tokens: Numbers, cached_tokens: Numbers, input_tokens: int
) -> int:
    """Least (prefill tokens to do, this request's included) + (tokens of the requests it has).

    Source: Dynamo, router concepts: cost = prefill_load_scale * uncached blocks + decode blocks;
    scale 1, temperature 0.
    """
    best, best_cost = 0, 0.0
    for rank in range(len(to_do_tokens)):
        cached = min(cached_tokens[rank], input_tokens - 1)
        cost = to_do_tokens[rank] + input_tokens - cached + active_tokens[rank]
        if rank == 0 or cost < best_cost:
            best, best_cost = rank, cost
    return best


def lmetric(
    to_do_tokens: Numbers, num_requests: Numbers, cached_tokens: Numbers, input_tokens: int
) -> int:
    """Least (prefill tokens to do, this request's included) * (requests it has + 1).

    Source: Dynamo, router concepts, its `lmetric` variant, after the LMetric paper.
    """
    best, best_cost = 0, 0.0
    for rank in range(len(to_do_tokens)):
        cached = min(cached_tokens[rank], input_tokens - 1)
        to_do = to_do_tokens[rank] + input_tokens - cached
        cost = to_do * (num_requests[rank] + 1.0)
        if rank == 0 or cost < best_cost:
            best, best_cost = rank, cost
    return best
