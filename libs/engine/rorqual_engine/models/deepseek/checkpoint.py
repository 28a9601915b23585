"""Weights of a DeepSeek checkpoint, by one name each whatever the file calls them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from rorqual_engine.errors import CorruptModel, ModelNotFound
from rorqual_engine.models.deepseek.formats import Quantized, QuantizedLinear, quantized
from rorqual_engine.models.deepseek.names import canonical_name
from rorqual_engine.models.deepseek.tensor_file import TensorFile
from rorqual_engine.models.device_kernels import DeviceKernels
from rorqual_engine.models.linear import Linear

INDEX_NAME = "model.safetensors.index.json"
_FUSED = {"experts.gate_up_proj": ("w1", "w3"), "experts.down_proj": ("w2",)}
"""All experts of a layer in one tensor, and the matrices on top of each other in each of them."""


@dataclass(frozen=True)
class _Place:
    """A tensor of a file, or one matrix of a tensor that holds several of several experts."""

    path: Path
    key: str
    expert: int | None = None
    part: int = 0
    num_parts: int = 1

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.expert is None:
            return tensor
        return tensor[self.expert].chunk(self.num_parts)[self.part]


class DeepseekWeights:
    """Tensors by canonical name. Files are opened when the first of their tensors is asked for, and
    mapped: values that nobody asks for, such as other ranks' experts, are never read."""

    def __init__(
        self,
        model_dir: Path,
        device: torch.device,
        dtype: torch.dtype,
        *,
        keeps_quantized: bool = False,
        kernels: DeviceKernels | None = None,
    ) -> None:
        """keeps_quantized: products keep 8 and 4 bit matrices as stored; kernels: what the model's
        steps run on, None = the CPU's compiled kernels where they fit, else plain torch.

        Raises: ModelNotFound, CorruptModel."""
        self.model_dir, self.device, self.dtype = model_dir, device, dtype
        self.keeps_quantized, self.kernels = keeps_quantized, kernels
        self._open = cache(TensorFile)
        self._places: dict[str, _Place] = {}
        for path, key in self._listed():
            for name, place in self._places_of(path, key):
                other = self._places.get(name)
                if other is not None:
                    raise CorruptModel(path, f"tensor {key} is also {other.key} of {other.path}")
                self._places[name] = place

    def _listed(self) -> Iterator[tuple[Path, str]]:
        """(file, key) of every tensor; from the index where there is one."""
        index = self.model_dir / INDEX_NAME
        if index.is_file():
            for key, name in _read_index(index).items():
                yield self.model_dir / name, key
            return
        paths = sorted(self.model_dir.glob("*.safetensors"))
        if not paths:
            raise ModelNotFound(self.model_dir, "no *.safetensors file")
        for path in paths:
            for key in self._open(path).entries:
                yield path, key

    def _places_of(self, path: Path, key: str) -> Iterator[tuple[str, _Place]]:
        name = canonical_name(key)
        fused = next((suffix for suffix in _FUSED if name.endswith(suffix)), None)
        if fused is None:
            yield name, _Place(path, key)
            return
        parts = _FUSED[fused]
        prefix = name.removesuffix(fused) + "experts"
        for expert in range(self._entry(path, key)[0]):
            for p, part in enumerate(parts):
                yield f"{prefix}.{expert}.{part}.weight", _Place(path, key, expert, p, len(parts))

    def _entry(self, path: Path, key: str) -> tuple[int, ...]:
        entry = self._open(path).entries.get(key)
        if entry is None:
            raise CorruptModel(path, f"tensor {key} is missing; {INDEX_NAME} says it is here")
        return entry.shape

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def raw(self, name: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """One tensor as it is stored, a view of its file: not to be written to.

        Raises: CorruptModel naming file and tensor.
        """
        place = self._places.get(name)
        if place is None:
            raise CorruptModel(self.model_dir, f"tensor {name} is missing")
        self._entry(place.path, place.key)
        tensor = place.of(self._open(place.path).tensor(place.key))
        if shape is not None:
            self._check_shape(name, tuple(tensor.shape), shape)
        return tensor

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Reads no values, but scales. Raises: CorruptModel."""
        self._check_shape(name, tuple(self.matrix(name).shape), shape)

    def _check_shape(self, name: str, found: tuple[int, ...], shape: tuple[int, ...]) -> None:
        if found != shape:
            raise self._fault(name, f"has shape {found}, config.json says {shape}")

    def _fault(self, name: str, reason: str) -> CorruptModel:
        place = self._places[name]
        called = "" if place.key == name else f"; in the file it is {place.key}"
        return CorruptModel(place.path, f"tensor {name} {reason}{called}")

    def matrix(self, name: str) -> torch.Tensor | Quantized:
        """One tensor as it is stored, with its scales where it has some. Raises: CorruptModel."""
        tensor = self.raw(name)
        scales = name.removesuffix(".weight") + ".scale"
        if name.endswith(".weight") and scales in self._places:
            try:
                return quantized(tensor, self.raw(scales))
            except ValueError as err:
                raise self._fault(name, str(err)) from err
        if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
            raise self._fault(name, f"has dtype {tensor.dtype} and no scales")
        return tensor

    def get(self, name: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """One tensor on the device in the model's dtype. Raises: CorruptModel."""
        return self._converted(name, shape, self.dtype)

    def vector(self, name: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """One tensor that stays fp32: norms, sinks, biases, what mixes streams."""
        return self._converted(name, shape, torch.float32)

    def _converted(
        self, name: str, shape: tuple[int, ...] | None, dtype: torch.dtype
    ) -> torch.Tensor:
        stored = self.matrix(name)
        if shape is not None:
            self._check_shape(name, tuple(stored.shape), shape)
        if isinstance(stored, Quantized):
            return stored.to(self.device).dequantized(dtype)
        return stored.to(device=self.device, dtype=dtype, copy=True).contiguous()

    def whole_numbers(self, name: str, shape: tuple[int, ...], limit: int) -> torch.Tensor:
        """int64 on the CPU, each in 0..limit-1. Raises: CorruptModel."""
        stored = self.raw(name, shape)
        if stored.is_floating_point() or stored.dtype == torch.bool:
            raise self._fault(name, f"has dtype {stored.dtype}, not whole numbers")
        numbers = stored.to(torch.int64, copy=True)
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < limit:
            raise self._fault(name, f"has numbers outside 0..{limit - 1}")
        return numbers

    def linear(self, *names: str) -> Linear:
        """The product with one matrix, or with several on top of each other."""
        if self.keeps_quantized:
            stored = [self.matrix(name) for name in names]
            parts = [part.to(self.device) for part in stored if isinstance(part, Quantized)]
            if len(parts) == len(names):
                return QuantizedLinear(parts, self.dtype)
        return Linear(torch.cat([self.get(name) for name in names]).contiguous())


def _read_index(index: Path) -> dict[str, str]:
    try:
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as err:
        raise CorruptModel(index, f"has no weight_map ({err!r})") from err
    if not isinstance(files, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in files.values()
    ):
        raise CorruptModel(index, "its weight_map does not name files of this directory")
    return files
