"""The tensor plane: bulk data by reference, pulled by its reader."""

from rorqual_runtime.tensors.arena import DEFAULT_LEASE_S
from rorqual_runtime.tensors.plane import TensorPlane
from rorqual_runtime.tensors.writable import WritableSlot

__all__ = ["DEFAULT_LEASE_S", "TensorPlane", "WritableSlot"]
