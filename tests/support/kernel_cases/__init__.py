"""Promises of the device kernels, each against its plain torch twin, on any device.

Used under Triton's interpreter (in a process of its own) and on a GPU.
"""

from tests.support.kernel_cases import attention, layers, pages, selection, tokens
from tests.support.kernel_cases.harness import CASES, Kernels

__all__ = ["CASES", "Kernels", "attention", "layers", "pages", "selection", "tokens"]
