"""Comparators in a replay: a request goes to a rank when it arrives, instead of being pulled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rorqual_sim.comparators import (
    cache_aware,
    kv_cost,
    least_requests,
    lmetric,
    power_of_two,
    round_robin,
)


@dataclass(frozen=True)
class Arrival:
    """A request, and what the rule may look at; lists have one entry a rank that is up."""

    number: int
    input_tokens: int
    picks: tuple[int, int]
    """Two ranks drawn at random."""
    num_requests: Sequence[float]
    to_do_tokens: Sequence[float]
    active_tokens: Sequence[float]
    """Input tokens of the requests that a rank has."""
    cached_tokens: Sequence[float]
    """Of this prompt; all equal where ranks share a store."""


@dataclass(frozen=True)
class PushRule:
    """Where a request goes."""

    choose: Callable[[Arrival], int]
    cache_s: float = 0.0
    """Seconds that a rank keeps the pages it touched, by default; 0 = one store shared by all."""


_CACHE_S = 900.0
"""HBM and host memory of a rank. Source: scheduling study, section 2."""

PUSH_RULES = {
    "round-robin": PushRule(lambda a: round_robin(a.number, len(a.num_requests))),
    "least-requests": PushRule(lambda a: least_requests(a.num_requests)),
    "power-of-two": PushRule(lambda a: power_of_two(a.num_requests, *a.picks)),
    "sglang-cache-aware": PushRule(
        lambda a: cache_aware(a.num_requests, a.cached_tokens, a.input_tokens), _CACHE_S
    ),
    "dynamo-kv-cost": PushRule(
        lambda a: kv_cost(a.to_do_tokens, a.active_tokens, a.cached_tokens, a.input_tokens),
        _CACHE_S,
    ),
    "lmetric": PushRule(
        lambda a: lmetric(a.to_do_tokens, a.num_requests, a.cached_tokens, a.input_tokens),
        _CACHE_S,
    ),
}
"""By the name that `rorqual replay --policy` takes."""
