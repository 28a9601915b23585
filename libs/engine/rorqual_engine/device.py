"""Threads and devices, settled before torch starts its pools."""

from __future__ import annotations

import os
import sys

SPIN_COUNT = "2000"
"""How long an idle OpenMP thread spins before it sleeps: a few microseconds.

The default spins for milliseconds, which on a machine shared by many processes takes the very
core another one needs. Source: measured with bench/bench_engine.py beside a busy neighbour.
"""


def configure_threads(num_threads: int | None = None) -> int:
    """Fixes the number of compute threads of this process and how they wait; returns it.

    Call it first thing in __main__, before anything imports torch: OpenMP reads these variables
    once. Values that the environment already holds win, so an operator can still override them.
    Raises: RuntimeError when torch is loaded already and the wanted number can't be set.
    """
    wanted = num_threads or available_cpus()
    os.environ.setdefault("OMP_NUM_THREADS", str(wanted))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(wanted)
    return int(os.environ["OMP_NUM_THREADS"])


def available_cpus() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
