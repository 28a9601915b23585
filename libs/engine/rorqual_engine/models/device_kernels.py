"""The registry's kernels as a model asks for them."""

from __future__ import annotations

import torch

from rorqual_engine.kernels.registry import AUTO, Kernel, KernelChoice, find_kernel


class DeviceKernels:
    """The implementation of each operation on one device."""

    def __init__(self, device: torch.device, choice: KernelChoice = AUTO) -> None:
        self._device, self._choice = device, choice

    def __call__(self, op: str) -> Kernel:
        """Raises: UnknownKernel."""
        return find_kernel(op, self._device, self._choice)


def kernels_for(device: torch.device, choice: KernelChoice) -> DeviceKernels | None:
    """None on a CPU for which nothing was chosen: models have compiled steps of their own there."""
    if device.type == "cpu" and choice == AUTO:
        return None
    return DeviceKernels(device, choice)
