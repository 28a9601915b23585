"""What holding window states is worth, and what it costs in state-seconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rorqual_policy.window_hold import WindowHold, window_hold_s

from rorqual_sim.compiled import compiled
from rorqual_sim.prefix import page_nodes
from rorqual_sim.traces import Trace


@dataclass(frozen=True)
class WindowRun:
    """One rule of holding over one trace."""

    held: float
    """Share of matches whose window was still there."""
    num_missed: int
    state_seconds: float


def replay_windows(trace: Trace, hold: WindowHold, page_tokens: int | None = None) -> WindowRun:
    """Hold each window by the rule; a store that forgets nothing says what is matched."""
    start, nodes, num_nodes = page_nodes(trace, page_tokens or trace.block_tokens)
    num_held, num_matched, state_seconds = _replay(trace.arrival_s, start, nodes, num_nodes, hold)
    return WindowRun(num_held / max(1, num_matched), num_matched - num_held, state_seconds)


@compiled
def _replay(
    arrival_s: NDArray[np.float64],
    start: NDArray[np.int64],
    nodes: NDArray[np.int32],
    num_nodes: int,
    hold: WindowHold,
) -> tuple[int, int, float]:
    since_s = np.full(num_nodes, -np.inf)  # made or last read; never made: -infinity
    held_s = np.zeros(num_nodes)
    num_held, num_matched, state_seconds = 0, 0, 0.0
    for request in range(len(arrival_s)):
        now_s = arrival_s[request]
        first, last = start[request], start[request + 1]
        matched = first
        while matched < last and since_s[nodes[matched]] > -np.inf:
            matched += 1
        if matched > first:
            node = nodes[matched - 1]
            num_matched += 1
            age_s = now_s - since_s[node]
            num_held += age_s <= held_s[node]
            state_seconds += min(age_s, held_s[node])
            since_s[node] = now_s
            held_s[node] = window_hold_s(0, hold)
        for index in range(matched, last):
            since_s[nodes[index]] = now_s
            held_s[nodes[index]] = window_hold_s(last - 1 - index, hold)
    for node in range(num_nodes):
        if since_s[node] > -np.inf:
            state_seconds += held_s[node]
    return num_held, num_matched, state_seconds
