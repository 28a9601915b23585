"""What prefill work costs on one rank, and how many tokens fit into a step.

The functions below take named tuples and plain numbers and use nothing but arithmetic, so that the
simulator compiles these very functions.
"""

from math import inf, sqrt
from typing import NamedTuple


class StepCost(NamedTuple):
    """One step of a rank takes a0_s + sum over its chunks of q * (a1_s + a2_s * c + a3_s * q)
    seconds, for q tokens that are computed behind c tokens of context.

    Coefficients are data: fitted on the running engine. Check them with `checked_cost`.
    """

    a0_s: float
    """Seconds a step takes whatever it computes."""
    a1_s: float
    """Seconds a token."""
    a2_s: float
    """Seconds a token and token of context: attention to what was there before."""
    a3_s: float
    """Seconds a squared token: attention within the chunk."""


STUDY_COST = StepCost(a0_s=8e-3, a1_s=15.69e-6, a2_s=5.98e-11, a3_s=2.99e-11)
"""Source: the scheduling study's assumed card, 60K tokens/s at q = 16K without context."""


def checked_cost(cost: StepCost) -> StepCost:
    """The cost itself.

    Raises: ValueError unless a0, a2, a3 >= 0 and a1 > 0, all finite.
    """
    is_finite = all(0 <= value < inf for value in cost)
    if not is_finite or cost.a1_s <= 0:
        raise ValueError(f"need finite a0, a2, a3 >= 0 and a1 > 0; got {cost}")
    return cost


def chunk_cost_s(cost: StepCost, num_tokens: int, context_tokens: int) -> float:
    """Seconds that computing num_tokens behind context_tokens adds to a step."""
    per_token_s = cost.a1_s + cost.a2_s * context_tokens + cost.a3_s * num_tokens
    return num_tokens * per_token_s


_USUAL_TOKENS, _USUAL_CONTEXT = 256, 1024


def relative_speed(cost: StepCost, mean: StepCost) -> float:
    """Of a rank of this cost against one of the mean cost, by what a usual step takes: the steps
    that refine a cost tell its sum far better than its coefficients."""
    return _usual_step_s(mean) / _usual_step_s(cost)


def _usual_step_s(cost: StepCost) -> float:
    return cost.a0_s + chunk_cost_s(cost, _USUAL_TOKENS, _USUAL_CONTEXT)


def solve_chunk_tokens(
    cost: StepCost, remaining_tokens: int, context_tokens: int, spare_s: float
) -> int:
    """Most tokens, at most remaining_tokens, whose chunk costs no more than spare_s; 0 when not
    even one fits."""
    if chunk_cost_s(cost, remaining_tokens, context_tokens) <= spare_s:
        return remaining_tokens
    if spare_s <= 0.0:
        return 0
    linear_s = cost.a1_s + cost.a2_s * context_tokens
    # The positive root of a3 q^2 + linear q = spare, in the form that does not divide by a3.
    root = 2.0 * spare_s / (linear_s + sqrt(linear_s * linear_s + 4.0 * cost.a3_s * spare_s))
    num_tokens = min(int(root), remaining_tokens)
    while num_tokens > 0 and chunk_cost_s(cost, num_tokens, context_tokens) > spare_s:
        num_tokens -= 1
    while (
        num_tokens < remaining_tokens
        and chunk_cost_s(cost, num_tokens + 1, context_tokens) <= spare_s
    ):
        num_tokens += 1
    return num_tokens


class StepBudget(NamedTuple):
    """Bounds of the time that one prefill step may take."""

    min_s: float
    max_s: float
    """Equal to min_s for a fixed budget."""


_LEAST_STEP = 6.0
"""Shortest planned step as a multiple of a0: at least 5/6 of the time is work, also under a light
load. Source: scan of 3 to 7.5 with a0 = 8 ms on two traces; mean TTFT differs by
4 % on conversations and 8 % on agent sessions."""


_MOST_STEP = 35.0
"""Longest planned step as a multiple of a0: a longer one would gain less than 3 % of the time, and
every prompt waits for the step under way. Source: the study's step, 273 ms with a0 = 8 ms."""
_SHORTEST_S, _SHORT_S = 1e-3, 0.1
"""Bounds of a planned step where a step costs nothing by itself."""


def adaptive_budget(cost: StepCost, max_s: float) -> StepBudget:
    """Budget between the shortest step that is worth its a0 and the longest one, at most max_s."""
    longest_s = min(max(_MOST_STEP * cost.a0_s, _SHORT_S), max_s)
    return StepBudget(min(max(_LEAST_STEP * cost.a0_s, _SHORTEST_S), longest_s), longest_s)


def checked_budget(cost: StepCost, budget: StepBudget, longest_tokens: int) -> StepBudget:
    """The budget itself.

    Raises: ValueError unless its shortest step computes the last token of the longest prompt.
    """
    needed_s = cost.a0_s + chunk_cost_s(cost, 1, longest_tokens - 1)
    if budget.min_s < needed_s:
        raise ValueError(
            f"steps of {budget.min_s:.4g} s compute nothing: one token behind "
            f"{longest_tokens - 1} others takes {needed_s:.4g} s"
        )
    return budget


def step_budget_s(cost: StepCost, budget: StepBudget, waiting_s: float, num_ranks: int) -> float:
    """Time for the next step: as short as possible while one step still clears this rank's fair
    share of the waiting work, within the bounds.

    waiting_s: estimated seconds of work that wait for any of num_ranks (>= 1) ranks.
    A short step answers a new prompt soon; a long one wastes less time on a0. Under a light load
    the waste costs nobody anything. Source: scheduling study, finding 4.
    """
    wanted_s = cost.a0_s + waiting_s / num_ranks
    return min(max(wanted_s, budget.min_s), budget.max_s)
