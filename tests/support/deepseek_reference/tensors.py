"""A checkpoint's tensors by name, in the precision of the reference."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

import torch


class Tensors:
    """Looks a tensor up below a prefix and gives it in `dtype`; whole numbers stay whole."""

    def __init__(self, by_name: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._prefix = ""
        self._by_name = {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in by_name.items()
        }

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._by_name[self._prefix + name]

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._by_name

    def at(self, prefix: str) -> Tensors:
        """The tensors whose names begin with the prefix, without it."""
        below = copy(self)
        below._prefix += prefix
        return below
