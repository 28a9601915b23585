"""Calls the kernels of a mixture layer on tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from rorqual_engine.kernels import deepseek_experts as k
from rorqual_engine.kernels.compiling import compile_function
from rorqual_engine.kernels.parallel import KernelCall
from rorqual_engine.kernels.simd import LANES

SERIAL_ROWS = 3
"""Fewer rows are not worth waking a second thread."""
_NEVER = -1.0e30
"""Bias of an expert that is none."""


@dataclass(frozen=True)
class RouterWeights:
    """bf16 [D, E] and fp32 [E] each; image_bias may be the same tensor. E fills whole vectors."""

    gate: torch.Tensor
    bias: torch.Tensor
    image_bias: torch.Tensor

    @classmethod
    def of(
        cls, gate: torch.Tensor, bias: torch.Tensor, image_bias: torch.Tensor | None
    ) -> RouterWeights:
        """gate: [E, D]; any E: those that fill it up are never chosen."""
        num_more = -len(gate) % LANES

        def filled(values: torch.Tensor) -> torch.Tensor:
            return functional.pad(values, (0, num_more), value=_NEVER)

        gate = functional.pad(gate.to(torch.bfloat16), (0, 0, 0, num_more)).T.contiguous()
        own = filled(bias)
        return cls(gate, own, own if image_bias is None else filled(image_bias))


@dataclass(frozen=True)
class ExpertWeights:
    """bf16 [experts, D, 2 * inner], gate then up, and [experts, inner, D]; the shared one last."""

    gate_up: torch.Tensor
    down: torch.Tensor


def supports_experts(hidden: int, inner: int, num_shared: int) -> bool:
    return not (hidden % LANES or inner % LANES) and num_shared == 1


def route(
    x: torch.Tensor,
    weights: RouterWeights,
    is_image: torch.Tensor | None,
    *,
    top_k: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(int32 [T, k], fp32 [T, k + 1]) of x bf16 [T, D]; the last weight is 1, of the shared one."""
    num_rows, hidden = x.shape
    experts = torch.empty((num_rows, top_k), dtype=torch.int32)
    chosen = torch.empty((num_rows, top_k + 1), dtype=torch.float32)
    flags = None if is_image is None else is_image.to(torch.int32)
    args = np.zeros(k.NUM_ROUTER_SLOTS, dtype=np.int64)
    args[k.R_ROWS :] = (
        num_rows, x.data_ptr(), hidden, len(weights.bias), top_k, weights.gate.data_ptr(),
        weights.bias.data_ptr(), weights.image_bias.data_ptr(),
        0 if flags is None else flags.data_ptr(), experts.data_ptr(), chosen.data_ptr(),
        round(scale * k.FIXED),
    )  # fmt: skip
    _compiled()[0](args.ctypes.data, _threads(num_rows // 16))
    return experts, chosen


def run_experts(
    x: torch.Tensor,
    experts: torch.Tensor,
    chosen: torch.Tensor,
    weights: ExpertWeights,
    clamp: float,
) -> torch.Tensor:
    """bf16 [T, D]: what the chosen experts and the shared one make of x bf16 [T, D].

    experts: int32 [T, k]; chosen: fp32 [T, k + 1], or [T, k] without the shared one.
    """
    num_rows, hidden = x.shape
    slots = chosen.shape[1]
    num_shared = slots - experts.shape[1]
    _, run, combine, group = _compiled()
    order = np.empty(num_rows * slots, dtype=np.int32)
    items = np.empty((num_rows * slots, 3), dtype=np.int32)
    num_routed = len(weights.down) - num_shared
    num_items = group(experts.numpy(), num_routed, num_shared, order, items)
    parts = torch.empty((num_rows, slots, hidden), dtype=torch.float32)
    args = np.zeros(k.NUM_EXPERT_SLOTS, dtype=np.int64)
    args[k.NUM_ITEMS :] = (
        num_items, items.ctypes.data, order.ctypes.data, x.data_ptr(), hidden,
        weights.down.shape[1], slots, weights.gate_up.data_ptr(), weights.down.data_ptr(),
        chosen.data_ptr(), parts.data_ptr(), round(clamp * k.FIXED),
    )  # fmt: skip
    run(args.ctypes.data, _threads(num_rows))
    target = torch.empty_like(x)
    threads = _threads(num_rows // 16)
    step = max(1, num_rows // (4 * threads))
    combine_args = np.array(
        [0, num_rows, step, hidden, slots, parts.data_ptr(), target.data_ptr()], dtype=np.int64
    )
    combine(combine_args.ctypes.data, threads)
    return target


def _threads(size: int) -> int:
    return 1 if size < SERIAL_ROWS else torch.get_num_threads()


@cache
def _compiled() -> tuple[KernelCall, KernelCall, KernelCall, Any]:
    return (
        KernelCall(k.route_rows),
        KernelCall(k.run_experts),
        KernelCall(k.combine_parts),
        compile_function(k.group_by_expert),
    )
