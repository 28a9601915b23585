"""A device that is not there: its tensors hold values, and mix with the host's as a GPU's would.

Inside `pretending()` whatever is made on or moved to DEVICE is a tensor of that device whose values
lie on the host. An operation over tensors of both devices fails as it does on a GPU, and every look
at a value from the host is counted: a GPU's host waits there for all that was launched before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("lazy:0")
"""A kind of device that torch lets anybody have, unlike `cuda` where there is none."""
_CPU = torch.device("cpu")
_aten = torch.ops.aten
_BETWEEN = {_aten._to_copy.default, _aten.copy_.default}
"""Move values from one device to the other."""
_INDEXED = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}
"""Their indices may lie on the host, which costs a wait."""
_LOOKS = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.equal.default,
    _aten.masked_select.default,
    _aten._unique2.default,
    _aten.unique_dim.default,
    _aten.unique_consecutive.default,
    _aten.bincount.default,
}
"""Their result, or its size, is needed on the host."""


class DeviceTensor(torch.Tensor):
    """Says that it lies on the device; `held` has the values."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> DeviceTensor:
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(),
            dtype=held.dtype, device=DEVICE,
        )  # fmt: skip
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.held})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of pretending()")


class Pretending(TorchDispatchMode):
    """waits: operations for whose result the host has waited, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        is_there = self._is_on_device(func, args, kwargs, given)
        if kwargs.get("device") is not None:
            kwargs["device"] = _CPU
        result = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        if not is_there:
            return result
        known = {id(t.held): t for t in given if isinstance(t, DeviceTensor)}
        return tree_map(lambda value: _as_device(value, known), result)

    def _is_on_device(self, func: Any, args: Any, kwargs: Any, given: list[torch.Tensor]) -> bool:
        """Whether the result lies there. Raises: RuntimeError for a mixture of devices."""
        there = [isinstance(t, DeviceTensor) for t in given]
        target = kwargs.get("device")
        is_unsized = func is _aten.repeat_interleave.Tensor and kwargs.get("output_size") is None
        if any(there) and (func in _LOOKS or is_unsized):
            self.waits[str(func)] += 1
        if func is _aten._to_copy.default and target is not None:
            is_there = torch.device(target).type == DEVICE.type
            self.waits["to host"] += any(there) and not is_there
            return is_there
        if target is not None:
            return torch.device(target).type == DEVICE.type
        if func is _aten.copy_.default:
            self.waits["to host"] += there == [False, True]
            return there[0]
        if func in _INDEXED and there and there[0]:
            indices = [i for i in args[1] if i is not None]
            self.waits["index from host"] += any(not isinstance(i, DeviceTensor) for i in indices)
            self.waits["mask"] += any(i.dtype == torch.bool for i in indices)
            there = [is_it for t, is_it in zip(given, there, strict=True) if _is_not_in(t, indices)]
            given = [t for t in given if _is_not_in(t, indices)]
        mixed = {is_it for t, is_it in zip(given, there, strict=True) if t.dim() or is_it}
        if len(mixed) > 1:
            shapes = [(tuple(t.shape), str(t.device)) for t in given]
            raise RuntimeError(f"{func} over tensors of both devices: {shapes}")
        return any(there)


def _is_not_in(tensor: torch.Tensor, others: list[torch.Tensor]) -> bool:
    return all(tensor is not other for other in others)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def _as_device(value: Any, known: dict[int, DeviceTensor]) -> Any:
    """What an operation in place returns is what it was given."""
    if not isinstance(value, torch.Tensor):
        return value
    return known[id(value)] if id(value) in known else DeviceTensor(value)


@contextmanager
def pretending() -> Iterator[Pretending]:
    """While the block runs there is a DEVICE on which plain torch operations run, without grad.

    Inference mode knows no such tensors; it is no_grad meanwhile.
    """
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor makes it on the host and moves it
    try:
        in_no_mode = patch.object(torch, "inference_mode", torch.no_grad)
        with torch.no_grad(), in_no_mode, Pretending() as mode:
            yield mode
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
