"""How an engine thread uses the processors it shares with every other process of the host."""

from __future__ import annotations

FIRST_STEP_PAUSE_S = 0.0015
"""Recipe and gateway need about this long to bring a first token to its reader."""


def should_spread_threads(num_sequences: int) -> bool:
    """Whether each compute thread keeps a CPU of its own for the next step.

    One sequence alone: other engines are likely idle, and nothing is lost. With more of them
    prefill and decode compute side by side, and bound threads would wait for each other
    (3% of the output of 32 streams).
    """
    return num_sequences == 1


def first_step_pause_s(num_running: int) -> float:
    """How long an engine lets its arrivals wait before the next step.

    Out of idleness a moment: the first token that has just left is still on its way through
    other processes, which a step would keep from the processors. While others run, none.
    """
    return FIRST_STEP_PAUSE_S if num_running == 0 else 0.0
