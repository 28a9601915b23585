"""Policy functions inside compiled loops: the very functions that services call, and comparators.

Importing this module tells numba that it may compile them where a compiled loop calls them. No
compiled code is kept on disk: it would outlive a change of the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit
from numba.extending import register_jitable
from rorqual_policy import (
    expert_moves,
    expert_placement,
    expert_split,
    prefill_order,
    step_cost,
    window_hold,
)

from rorqual_sim import comparators

Function = TypeVar("Function", bound=Callable[..., object])

POLICY_FUNCTIONS = (
    prefill_order.prefill_key_s,
    prefill_order.choose_least,
    prefill_order.choose_pull_queue,
    prefill_order.has_spare_compute,
    step_cost.chunk_cost_s,
    step_cost.solve_chunk_tokens,
    step_cost.step_budget_s,
    window_hold.window_hold_s,
    expert_placement.index_hosts,
    expert_split.fill_split,
    expert_split.spread_evenly,
    expert_split.level_expert,
    expert_split.level_pair,
    expert_split.water_level,
    expert_split.max_load,
    expert_split.round_split,
    expert_split.choose_replica,
    expert_moves.unlevelled,
    expert_moves.unevenness,
    expert_moves.relative_variance,
    expert_moves.best_change,
    expert_moves.gain_of,
    expert_moves.has_replicas,
    expert_moves.find_change,
    expert_moves.find_replica,
    expert_moves.find_swap,
    expert_moves.place_of,
    expert_moves.extreme_cards,
    expert_moves.apply_change,
    expert_moves.undo_change,
    comparators.round_robin,
    comparators.least_requests,
    comparators.power_of_two,
    comparators.cache_aware,
    comparators.kv_cost,
    comparators.lmetric,
)

for _function in POLICY_FUNCTIONS:
    register_jitable(_function)


def compiled(function: Function) -> Function:
    """The function, compiled at its first call for the types it is called with."""
    return cast(Function, njit(nogil=True)(function))
