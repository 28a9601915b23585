"""Threads and devices, settled as torch starts its pools."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def configure_threads(num_threads: int | None = None) -> int:
    """Fixes the number of compute threads of this process and how they wait; returns it.

    Call it first thing in __main__, before anything imports torch: OpenMP reads its variables
    once, as torch is loaded here. Values that the environment already holds win, and what is set
    here does not reach child processes.

    Waiting threads sleep instead of spinning: on a machine shared by many processes a spinning
    thread takes the very core another one needs (a product of 0.3 ms then took 8 ms). With one
    thread a CPU each thread keeps its CPU: after a pause the scheduler otherwise wakes both on
    one (a prefill of 87 tokens took 55 ms instead of 33 ms every other time on two cores).
    """
    wanted = num_threads or available_cpus()
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(wanted)
        return torch.get_num_threads()
    variables = {"OMP_NUM_THREADS": str(wanted), "OMP_WAIT_POLICY": "PASSIVE"}
    if wanted == available_cpus():
        variables["OMP_PROC_BIND"] = "true"
    with _environment(variables), _same_affinity():
        import torch

        return torch.get_num_threads()


def available_cpus() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """These variables, where they are not set, for the time of the block."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _same_affinity() -> Iterator[None]:
    """The calling thread may run where it could before: OpenMP binds the thread that loads it,
    and every thread started from it would inherit that one CPU."""
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    cpus = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cpus)
