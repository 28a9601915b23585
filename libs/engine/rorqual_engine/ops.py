"""The steps of a decoder layer that are not matrix products, behind one interface.

Two implementations compute the same: kernels/ (numba, CPU, bf16, every row's arithmetic fixed)
and ref/ (plain torch, any device and dtype).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from rorqual_engine.batch import Batch
from rorqual_engine.kv import PagedKvCache


@dataclass(frozen=True)
class AttentionShape:
    """Sizes that attention needs to know."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def q_dim(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads


class StepOps(Protocol):
    """One forward pass over one batch; rows are the batch's rows."""

    def add_norm(
        self, hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> torch.Tensor:
        """Adds delta to hidden IN PLACE, returns RMSNorm(hidden) * weight.

        hidden, delta: [T, hidden]; weight: [hidden].
        """
        ...

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """Rotates q and k, writes k and v to the pages, returns attention [T, heads * head_dim].

        qkv: [T, (heads + 2 * kv_heads) * head_dim], q then k then v.
        """
        ...

    def write(self, layer: int, qkv: torch.Tensor) -> None:
        """What attend writes, and nothing else; q is not read."""
        ...

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up; gate_up: [T, 2 * inner], gate first. Returns [T, inner]."""
        ...


class LayerOps(Protocol):
    """Makes the steps of forward passes."""

    def begin(self, batch: Batch, cache: PagedKvCache) -> StepOps: ...
