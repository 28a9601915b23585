"""The balancing policies, compiled: the very functions of `rorqual_policy`."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from functools import cache
from typing import Any

import numpy as np
from numba.extending import register_jitable
from rorqual_policy import expert_dispatch, expert_moves, expert_placement, expert_split
from rorqual_policy.expert_moves import MoveParams

from rorqual_engine.kernels.compiling import compile_function

_CALLED = (
    expert_placement.index_hosts,
    expert_split.fill_split,
    expert_split.spread_evenly,
    expert_split.level_expert,
    expert_split.level_pair,
    expert_split.water_level,
    expert_split.max_load,
    expert_split.round_split,
    expert_split.choose_replica,
    expert_dispatch.split_step,
    expert_dispatch.take_own_parts,
    expert_dispatch.num_away,
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
)


@cache
def _register() -> None:
    """numba may compile them where a compiled function calls them."""
    for function in _CALLED:
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
