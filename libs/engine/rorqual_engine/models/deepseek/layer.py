"""One decoder layer: attention and experts, each around the streams."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rorqual_engine.models.deepseek.attention import Attention
from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.engram import Engram
from rorqual_engine.models.deepseek.indexer import Selection
from rorqual_engine.models.deepseek.mhc import HyperConnection
from rorqual_engine.models.deepseek.moe import MoeLayer
from rorqual_engine.models.deepseek.plan import LayerPlan
from rorqual_engine.models.deepseek.rope import RopeTable
from rorqual_engine.models.deepseek.state import KvViews
from rorqual_engine.models.deepseek.step import Rows
from rorqual_engine.parallel import ExpertGroup


@dataclass(frozen=True)
class Streams:
    """What goes from sublayer to sublayer."""

    values: torch.Tensor
    """[T, n, D]"""
    pre: torch.Tensor
    """fp32 [T, n], how the sublayer before read its streams; stream 0 before the first."""

    def of(self, rows: torch.Tensor) -> Streams:
        return Streams(self.values[rows], self.pre[rows])


class Layer:
    """Weights of one layer and what they do."""

    def __init__(
        self, weights: DeepseekWeights, plan: LayerPlan, config: DeepseekConfig, rope: RopeTable,
        group: ExpertGroup | None = None, *, prefix: str | None = None,
    ) -> None:  # fmt: skip
        """prefix: of the weights' names, if not layers.<index>; group: whom the experts are shared
        with."""
        prefix = prefix or f"layers.{plan.index}"
        self.plan = plan
        self._engram = Engram(weights, plan.index, config) if plan.has_engram else None
        self._attention_mix = HyperConnection.load(weights, prefix, "attn", config)
        self._moe_mix = HyperConnection.load(weights, prefix, "ffn", config)
        self._attention = Attention(weights, f"{prefix}.attn", plan, config, rope)
        self.moe = MoeLayer.load(weights, f"{prefix}.ffn", plan, config, group)

    def compress(self, streams: Streams, rows: Rows, views: KvViews) -> None:
        """Writes the rows' entries and nothing else; for rows that stop before this layer."""
        if self._attention.compress is not None:
            x, _ = self._attention_mix.read(streams.values, streams.pre)
            self._attention.compress(x, rows, views)

    def __call__(
        self,
        streams: Streams,
        rows: Rows,
        views: KvViews,
        selections: dict[int, Selection],
        *,
        is_compressed: bool = False,
    ) -> Streams:
        """is_compressed: the rows' entries are written already."""
        if self._engram is not None:
            assert rows.grams is not None
            streams = Streams(self._engram(streams.values, rows.grams, rows.is_image), streams.pre)
        x, mix = self._attention_mix.read(streams.values, streams.pre)
        if self._attention.compress is not None and not is_compressed:
            self._attention.compress(x, rows, views)
        output = self._attention(x, rows, views, selections)
        streams = Streams(self._attention_mix.write(streams.values, output, mix), mix.pre)
        x, mix = self._moe_mix.read(streams.values, streams.pre)
        output = self.moe(x, rows.token_ids, rows.is_image)
        return Streams(self._moe_mix.write(streams.values, output, mix), mix.pre)
