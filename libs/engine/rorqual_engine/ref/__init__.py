"""Plain torch twins of the kernels: slow, readable, on any device."""

from rorqual_engine.ref.ops import TorchOps

__all__ = ["TorchOps"]
