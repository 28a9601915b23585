"""Sums so wide that their order does not show in an fp32 result."""

from __future__ import annotations

import torch

_WITHOUT_FP64 = frozenset({"npu", "mps"})
"""Kinds of devices that do not multiply fp64."""


def has_fp64(device: torch.device) -> bool:
    return device.type not in _WITHOUT_FP64


def widened(values: torch.Tensor) -> torch.Tensor:
    """In fp64, where the device has it, else in fp32."""
    return values.double() if has_fp64(values.device) else values.float()
