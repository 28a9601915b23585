"""How rows find their experts."""

from __future__ import annotations

import torch
from torch.nn import functional

from rorqual_engine.kernels.deepseek_moe_ops import RouterWeights, route
from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.experts import CompiledExperts, Routing
from rorqual_engine.models.deepseek.norms import exact_product
from rorqual_engine.models.deepseek.plan import LayerPlan


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
            name = f"{prefix}.tid2eid"
            table = weights.whole_numbers(name, shape, config.moe.num_experts)
            self._table = table.to(weights.device)
        else:
            self._bias = weights.vector(f"{prefix}.bias", (config.moe.num_experts,))
            if f"{prefix}.bias_vl" in weights:
                self._image_bias = weights.vector(f"{prefix}.bias_vl", (config.moe.num_experts,))
        self._compiled: RouterWeights | None = None
        if self._bias is not None and CompiledExperts.supports(weights, config):
            self._compiled = RouterWeights.of(self._gate, self._bias, self._image_bias)

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
