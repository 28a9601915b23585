"""Mixture layers: a router and experts, here or shared with other ranks."""

from __future__ import annotations

import numpy as np
import torch
from rorqual_policy.expert_placement import Cards

from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.device_steps import GroupedExperts
from rorqual_engine.models.deepseek.experts import (
    CompiledExperts,
    ExpertSet,
    PlainExperts,
    Routing,
)
from rorqual_engine.models.deepseek.plan import LayerPlan
from rorqual_engine.models.deepseek.remote_experts import RemoteExperts
from rorqual_engine.models.deepseek.router import Router
from rorqual_engine.parallel import ExpertGroup
from rorqual_engine.parallel.load import LayerLoad


class MoeLayer:
    """Routed experts, here or on several ranks, and the shared one."""

    def __init__(
        self, router: Router, experts: ExpertSet, config: DeepseekConfig,
        remote: RemoteExperts | None,
    ) -> None:  # fmt: skip
        self._router, self._experts, self._remote = router, experts, remote
        self._top_k = config.moe.top_k
        self._counts = torch.zeros(config.moe.num_experts, dtype=torch.int64)
        """By expert, where there is no remote that counts."""

    @classmethod
    def load(
        cls,
        weights: DeepseekWeights,
        prefix: str,
        plan: LayerPlan,
        config: DeepseekConfig,
        group: ExpertGroup | None = None,
    ) -> MoeLayer:
        """prefix: such as layers.0.ffn; group: whom the experts are shared with."""
        num_experts = config.moe.num_experts
        remote = RemoteExperts(group, plan.index, num_experts) if group else None
        held = remote.held if remote else range(num_experts)
        kind: type[CompiledExperts | GroupedExperts | PlainExperts] = PlainExperts
        if GroupedExperts.supports(weights):
            kind = GroupedExperts
        elif CompiledExperts.supports(weights, config):
            kind = CompiledExperts
        router = Router(weights, f"{prefix}.gate", plan, config)
        return cls(router, kind(weights, prefix, config, held), config, remote)

    def __call__(
        self, x: torch.Tensor, token_ids: torch.Tensor, is_image: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x: [T, D]; token_ids: [T]. A row's experts add up in the order they were chosen."""
        routing = self._router(x, token_ids, is_image)
        if self._remote is None:
            self._count(routing.experts)
            return self._experts.mixed(x, routing)
        arrived = self._remote.send(x, routing)
        outputs = self._experts.each(arrived.rows, arrived.experts)
        total = self._remote.collect(outputs, arrived)
        return (total + self._experts.shared(x).float()).to(x.dtype)

    def take_part(self, x: torch.Tensor) -> None:
        """Runs other ranks' rows, with none from here. x: [0, D]."""
        if self._remote is not None:
            nobody = torch.empty((0, self._top_k), dtype=torch.int64, device=x.device)
            arrived = self._remote.send(x, Routing(nobody, nobody.float()))
            self._remote.collect(self._experts.each(arrived.rows, arrived.experts), arrived)

    def load_so_far(self) -> LayerLoad:
        """Since the start. A step that runs meanwhile is in it whole or in part."""
        if self._remote is not None:
            return self._remote.counter.load()
        return LayerLoad(self._counts.to("cpu", copy=True).numpy())

    @property
    def table(self) -> Cards:
        """Which rank holds which experts; () without other ranks."""
        return self._remote.table if self._remote is not None else ()

    def move(self, table: Cards) -> None:
        """See `RemoteExperts.move`."""
        assert self._remote is not None
        self._remote.move(table, self._experts)

    def _count(self, experts: torch.Tensor) -> None:
        if experts.device.type == "cpu":  # a third of the time, in a step of few rows
            num_experts = len(self._counts)
            self._counts.numpy()[:] += np.bincount(experts.numpy().ravel(), minlength=num_experts)
            return
        flat = experts.flatten().long()
        self._counts = self._counts.to(flat.device)
        self._counts.scatter_add_(0, flat, torch.ones_like(flat))
