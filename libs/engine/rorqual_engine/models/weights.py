"""Reading weights from the safetensors files of a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from rorqual_engine.errors import CorruptModel, ModelNotFound


class Weights:
    """Tensors by name; files are memory mapped and read when asked for."""

    def __init__(self, model_dir: Path, device: torch.device, dtype: torch.dtype) -> None:
        """Raises: ModelNotFound, CorruptModel."""
        self.model_dir, self._device, self._dtype = model_dir, device, dtype
        self._files: dict[str, Any] = {}
        paths = sorted(model_dir.glob("*.safetensors"))
        if not paths:
            raise ModelNotFound(model_dir, "no *.safetensors file")
        for path in paths:
            try:
                file: Any = safe_open(path, framework="pt", device="cpu")
            except SafetensorError as err:
                raise CorruptModel(path, str(err)) from err
            self._files.update(dict.fromkeys(file.keys(), file))

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises: CorruptModel when the tensor is missing or has another shape."""
        if name not in self._files:
            raise CorruptModel(self.model_dir, f"tensor {name} is missing")
        found = tuple(self._files[name].get_slice(name).get_shape())
        if found != shape:
            raise CorruptModel(
                self.model_dir, f"tensor {name} has shape {found}, config.json says {shape}"
            )

    def get(self, name: str) -> torch.Tensor:
        """One tensor on the device, in the dtype asked for. Raises: CorruptModel."""
        if name not in self._files:
            raise CorruptModel(self.model_dir, f"tensor {name} is missing")
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor.to(device=self._device, dtype=self._dtype, copy=True).contiguous()

    def whole_numbers(self, name: str) -> torch.Tensor:
        """As get, int64. Raises: CorruptModel, for other than whole numbers as well."""
        if name not in self._files:
            raise CorruptModel(self.model_dir, f"tensor {name} is missing")
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        if tensor.is_floating_point() or tensor.is_complex():
            raise CorruptModel(self.model_dir, f"tensor {name} is {tensor.dtype}")
        return tensor.to(device=self._device, dtype=torch.int64)

    def stacked(self, names: list[str]) -> torch.Tensor:
        """Several tensors on top of each other along their first dimension."""
        return torch.cat([self.get(name) for name in names])

    def optional_stacked(self, names: list[str]) -> torch.Tensor | None:
        """As stacked; None when none of them exists. Raises: CorruptModel when some do."""
        if not any(name in self for name in names):
            return None
        return self.stacked(names)
