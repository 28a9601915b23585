"""Threads and devices, settled before torch starts its pools."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def configure_threads(num_threads: int | None = None) -> int:
    """Fixes the number of compute threads of this process and how they wait; returns it.

    Call it first thing in __main__, before anything imports torch: OpenMP reads these variables
    once. Values that the environment already holds win, so an operator can still override them.
    Idle threads sleep at once: by default they spin for milliseconds after every parallel region,
    and on a machine whose cores other processes use too, a product of 0.3 ms then takes 1 to 8 ms.
    Source: measured on two cores with one busy neighbour.
    """
    wanted = num_threads or available_cpus()
    os.environ.setdefault("OMP_NUM_THREADS", str(wanted))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(wanted)
    return int(os.environ["OMP_NUM_THREADS"])


def available_cpus() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def device_name(device: torch.device) -> str:
    """What step times depend on: the accelerator's product name, else the kind of device."""
    if device.type != "cuda":
        return device.type
    import torch

    return torch.cuda.get_device_name(device)
