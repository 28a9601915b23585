"""A checkpoint's tensors by name, in the precision of the reference."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class Tensors:
    """Looks a tensor up below a prefix and gives it in `dtype`; whole numbers stay whole."""

    def __init__(
        self, by_name: Mapping[str, torch.Tensor], dtype: torch.dtype, prefix: str = ""
    ) -> None:
        self.dtype = dtype
        self._by_name, self._prefix = by_name, prefix

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._by_name[self._prefix + name]
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._by_name

    def at(self, prefix: str) -> Tensors:
        """The tensors whose names begin with the prefix, without it."""
        return Tensors(self._by_name, self.dtype, self._prefix + prefix)
