"""Model plug-ins: each declares its KV and runs forward passes; the engine asks no more."""

from rorqual_engine.models.base import CausalModel
from rorqual_engine.models.registry import load_model

__all__ = ["CausalModel", "load_model"]
