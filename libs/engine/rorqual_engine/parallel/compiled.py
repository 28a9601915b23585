"""The balancing policies, compiled: the very functions of `rorqual_policy`."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from functools import cache
from typing import Any

import numpy as np
from numba.extending import register_jitable
from rorqual_policy import expert_dispatch, expert_moves, expert_split
from rorqual_policy.compilable import COMPILABLE
from rorqual_policy.expert_moves import MoveParams

from rorqual_engine.kernels.compiling import compile_function


@cache
def _register() -> None:
    """numba may compile them where a compiled function calls them."""
    for function in COMPILABLE:
        register_jitable(function)


@cache
def assign_rows() -> Any:
    """`expert_dispatch.assign_rows` over arrays."""
    _register()
    return compile_function(expert_dispatch.assign_rows)


@cache
def assign_by_recent() -> Any:
    """`expert_dispatch.assign_by_recent` over arrays."""
    _register()
    return compile_function(expert_dispatch.assign_by_recent)


@cache
def fill_split() -> Any:
    """`expert_split.fill_split` over arrays."""
    _register()
    return compile_function(expert_split.fill_split)


@cache
def _improve_slots() -> Any:
    _register()
    return compile_function(expert_moves.improve_slots)


def improve(
    samples: Sequence[Sequence[float]],
    card_first: Sequence[int],
    slots: MutableSequence[int],
    params: MoveParams,
) -> int:
    """`improve_slots`, without the interpreter lock."""
    changed = np.array(slots, np.int64)
    found = np.array(samples, np.float64)
    num_changed: int = _improve_slots()(found, np.array(card_first), changed, params)
    slots[:] = changed.tolist()
    return num_changed


def compile_improve() -> None:
    """Now, and not at the first interval: compiling holds the interpreter lock."""
    improve([[3.0, 1.0]] * 2, [0, 1, 2], [0, 1], MoveParams())
