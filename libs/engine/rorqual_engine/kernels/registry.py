"""Which implementation of an operation runs on a device.

| name | what | where |
|---|---|---|
| twin | plain torch, ref/ | any device torch knows: the reference |
| numba | compiled for the CPU, kernels/ | cpu |
| triton | kernels/triton/ | cuda; npu, where Triton has a backend for it; cpu when interpreted |

Modules are imported when an operation is first asked for, never before: a machine without an
accelerator does not import Triton.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, wraps
from importlib.util import find_spec
from typing import Any

import torch

from rorqual_engine.errors import EngineError

Kernel = Callable[..., Any]

TOPICS = {
    "gather_entries": "entries",
    "scatter_entries": "entries",
    "write_window": "entries",
    "attend_entries": "sparse_attention",
    "rotate_pairs": "sparse_attention",
    "index_scores": "index",
    "best_entries": "index",
    "best_blocks": "index",
    "block_peaks": "index",
    "mix_streams": "streams",
    "collapse_streams": "streams",
    "expand_streams": "streams",
    "run_experts": "experts",
    "choose_tokens": "choice",
}
"""Operations by the module of ref/ and of kernels/triton/ that has them."""

_NUMBA = {"choose_tokens": "choose_rows"}
"""Operations by the module of kernels/ that has them."""

_BEST_FIRST = {"cpu": ("numba", "twin"), "cuda": ("triton", "twin"), "npu": ("twin",)}
"""By kind of device; kinds that are not named run the twins."""

NAMES = ("twin", "numba", "triton")


class UnknownKernel(EngineError):
    """There is no such operation, or no such implementation of it on this device."""

    def __init__(self, op: str, name: str, device: str, known: tuple[str, ...]) -> None:
        self.op, self.name, self.device, self.known = op, name, device, known
        super().__init__(f"{name} of {op} on {device}; known are {', '.join(known) or 'none'}")


@dataclass(frozen=True)
class KernelChoice:
    """What an operator asks for instead of the best."""

    everywhere: str | None = None
    by_op: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> KernelChoice:
        """`auto`, the name of an implementation, or both by operation behind commas, such as
        `twin,choose_tokens=triton`. Raises: UnknownKernel."""
        everywhere: str | None = None
        by_op = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            op, _, name = part.rpartition("=")
            if op and op not in TOPICS:
                raise UnknownKernel(op, name, "any device", tuple(TOPICS))
            if name != "auto" and name not in NAMES:
                raise UnknownKernel(op or "all", name, "any device", ("auto", *NAMES))
            if op:
                by_op[op] = name
            else:
                everywhere = None if name == "auto" else name
        return cls(everywhere, by_op)

    def wanted(self, op: str) -> str | None:
        name = self.by_op.get(op, self.everywhere)
        return None if name == "auto" else name


AUTO = KernelChoice()


def find_kernel(op: str, device: torch.device | str, choice: KernelChoice = AUTO) -> Kernel:
    """The chosen implementation, else the best one here. Raises: UnknownKernel."""
    kind = torch.device(device).type
    names = available(op, kind)
    name = choice.wanted(op) or names[0]
    if name not in names:
        raise UnknownKernel(op, name, kind, names)
    return _load(op, name)


def available(op: str, kind: str) -> tuple[str, ...]:
    """Names of what can run an operation on a kind of device, the best first."""
    if op not in TOPICS:
        raise UnknownKernel(op, "any implementation", kind, tuple(TOPICS))
    best = _BEST_FIRST.get(kind, ("twin",))
    ordered = (*best, *(name for name in NAMES if name not in best))
    return tuple(name for name in ordered if _is_there(op, name, kind))


def _is_there(op: str, name: str, kind: str) -> bool:
    if name == "numba":
        return kind == "cpu" and op in _NUMBA
    if name == "triton":
        is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        return (is_interpreted or kind in ("cuda", "npu")) and find_spec("triton") is not None
    return True


@cache
def _load(op: str, name: str) -> Kernel:
    module = {
        "twin": f"rorqual_engine.ref.{TOPICS[op]}",
        "numba": f"rorqual_engine.kernels.{_NUMBA.get(op)}",
        "triton": f"rorqual_engine.kernels.triton.{TOPICS[op]}",
    }[name]
    kernel: Kernel = getattr(importlib.import_module(module), op)
    return _where_its_tensors_are(kernel) if name == "triton" else kernel


def _where_its_tensors_are(kernel: Kernel) -> Kernel:
    """Triton launches on the thread's current device, wherever the tensors are."""

    @wraps(kernel)
    def launch(first: torch.Tensor, *others: Any, **options: Any) -> Any:
        if not first.is_cuda:
            return kernel(first, *others, **options)
        with torch.cuda.device(first.device):
            return kernel(first, *others, **options)

    return launch
