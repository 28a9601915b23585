"""Choices about how a model is loaded, the same for every family."""

from __future__ import annotations

from dataclasses import dataclass

from rorqual_engine.kernels.registry import AUTO, KernelChoice
from rorqual_engine.parallel import ExpertGroup


@dataclass(frozen=True)
class LoadOptions:
    keeps_quantized: bool = False
    """Matrices stored in 8 or 4 bits stay so in memory and are widened at each use: the same values
    in less memory, but slower."""
    group: ExpertGroup | None = None
    """Other ranks to share experts with."""
    kernels: KernelChoice = AUTO
    """Implementations to use instead of the best of the device."""
    drafts: bool = False
    """What of the checkpoint makes drafts is loaded as well. A block of drafts is kept up with
    every row: all who share a sequence's state must agree."""
