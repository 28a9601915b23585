"""The experts of a layer: what they make of rows, one by one or mixed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from rorqual_engine.kernels.deepseek_moe_ops import ExpertWeights, run_experts, supports_experts
from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.linear import Linear


@dataclass(frozen=True)
class Routing:
    """Which experts each row goes to."""

    experts: torch.Tensor
    """int32 or int64 [T, k]"""
    weights: torch.Tensor
    """fp32 [T, k]"""


class Expert:
    """down(silu(min(gate, c)) * clamp(up, -c, c))"""

    def __init__(self, gate_up: Linear, down: Linear, clamp: float) -> None:
        self._gate_up, self._down, self._clamp = gate_up, down, clamp

    @classmethod
    def load(cls, weights: DeepseekWeights, prefix: str, clamp: float) -> Expert:
        gate_up = weights.linear(f"{prefix}.w1.weight", f"{prefix}.w3.weight")
        return cls(gate_up, weights.linear(f"{prefix}.w2.weight"), clamp)

    def stored(self) -> list[torch.Tensor]:
        """What it was made of; to be read only."""
        return [*self._gate_up.stored(), *self._down.stored()]

    def with_stored(self, tensors: Sequence[torch.Tensor]) -> Expert:
        """An expert of the same form."""
        cut = len(self._gate_up.stored())
        gate_up, down = tensors[:cut], tensors[cut:]
        return Expert(self._gate_up.with_stored(gate_up), self._down.with_stored(down), self._clamp)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        inner = functional.silu(gate.clamp(max=self._clamp)) * up.clamp(-self._clamp, self._clamp)
        return self._down(inner)


class ExpertSet(ABC):
    """The experts of one layer that are here, and the shared one."""

    @abstractmethod
    def mixed(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        """What the chosen experts and the shared one make of x [T, D]; all are here. A row's
        weighted outputs add up in fp32 in the order they were chosen, the shared one's last."""

    @abstractmethod
    def each(self, rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """What one expert makes of each row. rows: [M, D]; experts: int64 [M], places here."""

    @abstractmethod
    def shared(self, x: torch.Tensor) -> torch.Tensor:
        """What the shared expert makes of x."""

    @abstractmethod
    def stored(self, slot: int) -> list[torch.Tensor]:
        """All that makes the expert of a slot what it is; to be read only."""

    @abstractmethod
    def prepare(self, slot: int, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Gets all ready to put another expert, `stored` of which was tensors, into a slot. The
        result does it, and can't fail."""


class StackedExperts(ExpertSet):
    """Slots in two tensors, the shared expert behind them."""

    _stacks: tuple[torch.Tensor, torch.Tensor]
    """[slots + 1, ...] each"""

    def stored(self, slot: int) -> list[torch.Tensor]:
        return [stack[slot] for stack in self._stacks]

    def prepare(self, slot: int, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        def put() -> None:
            for target, tensor in zip(self.stored(slot), tensors, strict=True):
                target.copy_(tensor)

        return put


class PlainExperts(ExpertSet):
    """One product after the other, on any device."""

    def __init__(
        self, weights: DeepseekWeights, prefix: str, config: DeepseekConfig, held: Sequence[int]
    ) -> None:
        """held: numbers of the experts to load."""
        clamp = config.moe.clamp
        names = [f"{prefix}.experts.{number}" for number in held]
        self._experts = [Expert.load(weights, name, clamp) for name in names]
        self._shared = Expert.load(weights, f"{prefix}.shared_experts", clamp)

    def mixed(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        num_rows, top_k = routing.experts.shape
        rows = x.repeat_interleave(top_k, dim=0)
        parts = self.each(rows, routing.experts.flatten()).view(num_rows, top_k, -1)
        weighted = parts.float() * routing.weights[:, :, None]
        total = weighted[:, 0]
        for choice in range(1, top_k):
            total = total + weighted[:, choice]
        return (total + self.shared(x).float()).to(x.dtype)

    def each(self, rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """The host waits for one thing: how many rows every expert has."""
        outputs = torch.empty_like(rows)
        order = experts.argsort(stable=True)
        counts = torch.bincount(experts, minlength=len(self._experts)).tolist()
        for number, places in enumerate(torch.split(order, counts)):
            if len(places):
                outputs[places] = self._experts[number](rows[places])
        return outputs

    def shared(self, x: torch.Tensor) -> torch.Tensor:
        return self._shared(x) if len(x) else x

    def stored(self, slot: int) -> list[torch.Tensor]:
        return self._experts[slot].stored()

    def prepare(self, slot: int, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        expert = self._experts[slot].with_stored([tensor.clone() for tensor in tensors])
        return lambda: self._experts.__setitem__(slot, expert)


class CompiledExperts(StackedExperts):
    """On the CPU's kernels, bf16."""

    def __init__(
        self, weights: DeepseekWeights, prefix: str, config: DeepseekConfig, held: Sequence[int]
    ) -> None:
        """held: numbers of the experts to load."""
        names = [f"{prefix}.experts.{number}" for number in held]
        names.append(f"{prefix}.shared_experts")
        self._clamp = config.moe.clamp
        self._weights = ExpertWeights(
            torch.stack([_gate_up(weights, name) for name in names]),
            torch.stack([weights.get(f"{name}.w2.weight").T for name in names]),
        )
        self._stacks = self._weights.gate_up, self._weights.down

    @staticmethod
    def supports(weights: DeepseekWeights, config: DeepseekConfig) -> bool:
        moe = config.moe
        is_fit = supports_experts(config.hidden, moe.inner, moe.num_shared)
        is_cpu_bf16 = weights.device.type == "cpu" and weights.dtype == torch.bfloat16
        return is_fit and is_cpu_bf16 and not weights.keeps_quantized

    def mixed(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        chosen = functional.pad(routing.weights, (0, 1), value=1.0)
        return self._run(x, routing.experts, chosen)

    def each(self, rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        return self._run(rows, experts[:, None], torch.ones(len(rows), 1))

    def shared(self, x: torch.Tensor) -> torch.Tensor:
        last = len(self._weights.down) - 1
        return self.each(x, torch.full((len(x),), last))

    def _run(self, x: torch.Tensor, experts: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        numbers = experts.to(torch.int32).contiguous()
        return run_experts(x.contiguous(), numbers, chosen, self._weights, self._clamp)


def _gate_up(weights: DeepseekWeights, name: str) -> torch.Tensor:
    """[D, 2 * inner], contiguous once stacked."""
    return torch.cat([weights.get(f"{name}.w1.weight"), weights.get(f"{name}.w3.weight")]).T
