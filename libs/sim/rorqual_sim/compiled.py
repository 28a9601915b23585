"""Policy functions inside compiled loops: the very functions that services call, and comparators.

Importing this module tells numba that it may compile them where a compiled loop calls them. No
compiled code is kept on disk: it would outlive a change of the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit
from numba.extending import register_jitable
from rorqual_policy.compilable import COMPILABLE

from rorqual_sim import comparators

Function = TypeVar("Function", bound=Callable[..., object])

_COMPARATORS = (
    comparators.round_robin,
    comparators.least_requests,
    comparators.power_of_two,
    comparators.cache_aware,
    comparators.kv_cost,
    comparators.lmetric,
)

for _function in (*COMPILABLE, *_COMPARATORS):
    register_jitable(_function)


def compiled(function: Function) -> Function:
    """The function, compiled at its first call for the types it is called with."""
    return cast(Function, njit(nogil=True)(function))
