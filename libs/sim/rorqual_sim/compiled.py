"""Policy functions inside compiled loops: the very functions that services call.

Importing this module tells numba that it may compile them where a compiled loop calls them. No
compiled code is kept on disk: it would outlive a change of the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit
from numba.extending import register_jitable
from rorqual_policy import prefill_order, step_cost, window_hold

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
)

for _function in POLICY_FUNCTIONS:
    register_jitable(_function)


def compiled(function: Function) -> Function:
    """The function, compiled at its first call for the types it is called with."""
    return cast(Function, njit(nogil=True)(function))
