"""The policy functions that compile as they are: arithmetic over numbers, arrays and named tuples.

Whoever compiles a loop that calls them, the engine or the simulator, registers these.
"""

from rorqual_policy import (
    expert_dispatch,
    expert_moves,
    expert_placement,
    expert_split,
    prefill_order,
    step_cost,
    window_hold,
)

COMPILABLE = (
    prefill_order.prefill_key_s,
    prefill_order.choose_least,
    prefill_order.choose_pull_queue,
    prefill_order.has_spare_compute,
    prefill_order.fits_beside,
    prefill_order.beside_room_s,
    prefill_order.gains_beside,
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
