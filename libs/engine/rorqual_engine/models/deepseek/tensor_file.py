"""One safetensors file, mapped into memory: a tensor costs nothing until its values are read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from rorqual_engine.errors import CorruptModel, ModelNotFound

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor's bytes lie, from the file's first byte on."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorFile:
    """Reads the header; the rest is mapped."""

    def __init__(self, path: Path) -> None:
        """Raises: ModelNotFound, CorruptModel."""
        if not path.is_file():
            raise ModelNotFound(path.parent, f"{path.name} is missing")
        self.path, self._size = path, path.stat().st_size
        header, data_begin = self._read_header()
        self.entries = {
            name: self._entry(name, fields, data_begin)
            for name, fields in header.items()
            if name != "__metadata__"
        }
        self._bytes: torch.Tensor | None = None

    def tensor(self, name: str) -> torch.Tensor:
        """A view of the map; nobody may write to it."""
        entry = self.entries[name]
        if self._bytes is None:
            self._bytes = torch.from_file(
                str(self.path), shared=False, size=self._size, dtype=torch.uint8
            )
        part = self._bytes[entry.begin : entry.end]
        if entry.begin % entry.dtype.itemsize:
            part = part.clone()
        return part.view(entry.dtype).view(entry.shape)

    def _read_header(self) -> tuple[dict[str, Any], int]:
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(_LONGEST_HEADER, self._size - 8):
                raise CorruptModel(self.path, f"a header of {length} bytes does not fit the file")
            try:
                header = json.loads(file.read(length))
            except ValueError as err:
                raise CorruptModel(self.path, f"its header is not JSON ({err})") from err
        if not isinstance(header, dict):
            raise CorruptModel(self.path, "its header is not a JSON object")
        return header, 8 + length

    def _entry(self, name: str, fields: Any, data_begin: int) -> TensorEntry:
        try:
            kind, shape = fields["dtype"], tuple(int(size) for size in fields["shape"])
            begin, end = (data_begin + int(offset) for offset in fields["data_offsets"])
        except (KeyError, TypeError, ValueError) as err:
            raise CorruptModel(self.path, f"tensor {name} has no proper entry ({err})") from err
        if kind not in _DTYPES:
            known = ", ".join(_DTYPES)
            raise CorruptModel(self.path, f"tensor {name} has dtype {kind}; known are {known}")
        is_inside = data_begin <= begin <= end <= self._size
        if not is_inside or min(shape, default=0) < 0:
            raise CorruptModel(self.path, f"tensor {name} lies outside the file")
        if prod(shape) * _DTYPES[kind].itemsize != end - begin:
            found = f"{end - begin} bytes, not those of shape {shape} and dtype {kind}"
            raise CorruptModel(self.path, f"tensor {name} has {found}")
        return TensorEntry(_DTYPES[kind], shape, begin, end)
