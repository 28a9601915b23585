"""Experts and how rows find theirs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from rorqual_engine.kernels.deepseek_moe_ops import (
    ExpertWeights,
    RouterWeights,
    route,
    run_experts,
    supports_experts,
)
from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.norms import exact_product
from rorqual_engine.models.deepseek.plan import LayerPlan
from rorqual_engine.models.linear import Linear


@dataclass(frozen=True)
class Routing:
    """Which experts each row goes to."""

    experts: torch.Tensor
    """int32 or int64 [T, k]"""
    weights: torch.Tensor
    """fp32 [T, k]"""


class Router:
    """Scores by softplus; the best by score and bias, or those of a table."""

    def __init__(
        self, weights: DeepseekWeights, prefix: str, plan: LayerPlan, config: DeepseekConfig
    ) -> None:
        self._top_k, self._scale = config.moe.top_k, config.moe.scale
        self._gate = weights.vector(f"{prefix}.weight", (config.moe.num_experts, config.hidden))
        self._table = self._bias = self._image_bias = None
        if plan.router == "hash":
            shape = (config.vocab_size, config.moe.top_k)
            self._table = weights.raw(f"{prefix}.tid2eid", shape).long().to(weights.device)
        else:
            self._bias = weights.vector(f"{prefix}.bias", (config.moe.num_experts,))
            if f"{prefix}.bias_vl" in weights:
                self._image_bias = weights.vector(f"{prefix}.bias_vl", (config.moe.num_experts,))
        self._compiled: RouterWeights | None = None
        if self._bias is not None and CompiledExperts.supports(weights, config):
            gate = self._gate.to(torch.bfloat16).T.contiguous()
            image_bias = self._bias if self._image_bias is None else self._image_bias
            self._compiled = RouterWeights(gate, self._bias, image_bias)

    def __call__(
        self, x: torch.Tensor, token_ids: torch.Tensor, is_image: torch.Tensor | None
    ) -> Routing:
        """x: [T, D]; token_ids: [T]; is_image: bool [T], None = no row is."""
        if self._compiled is not None:
            experts, weights = route(
                x.contiguous(), self._compiled, is_image, top_k=self._top_k, scale=self._scale
            )
            return Routing(experts, weights[:, :-1])
        scores = functional.softplus(exact_product(x, self._gate)).sqrt()
        experts = self._choose(scores, token_ids, is_image)
        weights = scores.gather(1, experts)
        return Routing(experts, weights / (weights.sum(-1, keepdim=True) + 1e-20) * self._scale)

    def _choose(
        self, scores: torch.Tensor, token_ids: torch.Tensor, is_image: torch.Tensor | None
    ) -> torch.Tensor:
        if self._table is not None:
            return self._table[token_ids]
        assert self._bias is not None
        bias = self._bias
        if is_image is not None and self._image_bias is not None:
            bias = torch.where(is_image[:, None], self._image_bias, bias)
        order = (scores + bias).sort(dim=-1, descending=True, stable=True).indices
        return order[:, : self._top_k]


class Expert:
    """down(silu(min(gate, c)) * clamp(up, -c, c))"""

    def __init__(self, gate_up: Linear, down: Linear, clamp: float) -> None:
        self._gate_up, self._down, self._clamp = gate_up, down, clamp

    @classmethod
    def load(cls, weights: DeepseekWeights, prefix: str, clamp: float) -> Expert:
        gate_up = weights.linear(f"{prefix}.w1.weight", f"{prefix}.w3.weight")
        return cls(gate_up, weights.linear(f"{prefix}.w2.weight"), clamp)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        inner = functional.silu(gate.clamp(max=self._clamp)) * up.clamp(-self._clamp, self._clamp)
        return self._down(inner)


class MoeLayer:
    """Routed experts and the shared one."""

    def __init__(
        self,
        router: Router,
        experts: list[Expert],
        shared: Expert | None,
        kernels: CompiledExperts | None = None,
    ) -> None:
        """kernels: what runs instead of experts and shared, where it can."""
        self._router, self._experts, self._shared = router, experts, shared
        self._kernels = kernels

    @classmethod
    def load(
        cls, weights: DeepseekWeights, prefix: str, plan: LayerPlan, config: DeepseekConfig
    ) -> MoeLayer:
        """prefix: such as layers.0.ffn"""
        router = Router(weights, f"{prefix}.gate", plan, config)
        if CompiledExperts.supports(weights, config):
            return cls(router, [], None, CompiledExperts(weights, prefix, config))
        clamp = config.moe.clamp
        return cls(
            router,
            [
                Expert.load(weights, f"{prefix}.experts.{e}", clamp)
                for e in range(config.moe.num_experts)
            ],
            Expert.load(weights, f"{prefix}.shared_experts", clamp),
        )

    def __call__(
        self, x: torch.Tensor, token_ids: torch.Tensor, is_image: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x: [T, D]; token_ids: [T]. A row's experts add up in the order they were chosen."""
        routing = self._router(x, token_ids, is_image)
        if self._kernels is not None:
            return self._kernels(x, routing)
        assert self._shared is not None
        parts = x.new_zeros((*routing.experts.shape, x.shape[1]), dtype=torch.float32)
        for number in torch.unique(routing.experts).tolist():
            rows, slots = (routing.experts == number).nonzero(as_tuple=True)
            output = self._experts[number](x[rows]).float()
            parts[rows, slots] = output * routing.weights[rows, slots, None]
        total = parts[:, 0]
        for slot in range(1, parts.shape[1]):
            total = total + parts[:, slot]
        return (total + self._shared(x).float()).to(x.dtype)


class CompiledExperts:
    """All experts of a layer on the CPU's kernels, bf16."""

    def __init__(self, weights: DeepseekWeights, prefix: str, config: DeepseekConfig) -> None:
        names = [f"{prefix}.experts.{e}" for e in range(config.moe.num_experts)]
        names.append(f"{prefix}.shared_experts")
        self._clamp = config.moe.clamp
        self._weights = ExpertWeights(
            torch.stack([_gate_up(weights, name) for name in names]),
            torch.stack([weights.get(f"{name}.w2.weight").T for name in names]),
        )

    @staticmethod
    def supports(weights: DeepseekWeights, config: DeepseekConfig) -> bool:
        moe = config.moe
        is_fit = supports_experts(config.hidden, moe.inner, moe.num_experts, moe.num_shared)
        return is_fit and weights.device.type == "cpu" and weights.dtype == torch.bfloat16

    def __call__(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        experts = routing.experts.to(torch.int32).contiguous()
        chosen = functional.pad(routing.weights, (0, 1), value=1.0)
        return run_experts(x.contiguous(), experts, chosen, self._weights, self._clamp)


def _gate_up(weights: DeepseekWeights, name: str) -> torch.Tensor:
    """[D, 2 * inner], contiguous once stacked."""
    return torch.cat([weights.get(f"{name}.w1.weight"), weights.get(f"{name}.w3.weight")]).T
