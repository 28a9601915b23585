"""DSpark: a draft module that guesses a block of tokens behind the last one at once.

It reads some of the model's streams (taps). Of every row that ran through all layers, each stage
keeps a key, in a ring of the window slot; keys of rows that are taken back are simply written
again. A block is the last token, which the model has not run yet, and noise behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.dspark_attention import BlockAttention, BlockRows
from rorqual_engine.models.deepseek.head import FinalHead
from rorqual_engine.models.deepseek.layer import Streams
from rorqual_engine.models.deepseek.mhc import HyperConnection
from rorqual_engine.models.deepseek.moe import MoeLayer
from rorqual_engine.models.deepseek.norms import rms_norm
from rorqual_engine.models.deepseek.plan import LayerPlan
from rorqual_engine.models.deepseek.rope import RopeTable, rotate
from rorqual_engine.models.deepseek.state import KvViews
from rorqual_engine.models.deepseek.step import Rows
from rorqual_engine.models.drafts import Anchor, Drafts, Sampler
from rorqual_engine.models.dspark_heads import DraftHeads, GuessRows
from rorqual_engine.models.linear import Linear

_MAIN = "mtp.0.main_proj.weight"


class Taps:
    """Streams of one pass on their way; only of rows that a later block may read."""

    def __init__(self, layers: Sequence[int], rows: Rows, window: int) -> None:
        """layers: whose input is wanted."""
        self._layers, self.end = layers, rows.tables.highest_end
        self._means: dict[int, torch.Tensor] = {}
        at = rows.ring_places(window)
        self._kept, self.slots = at.kept, at.slots
        self.positions = rows.positions if at.kept is None else rows.positions[at.kept]

    def see(self, layer: int, streams: torch.Tensor) -> None:
        """streams: [T, n, D], what enters the layer."""
        if layer in self._layers:
            kept = streams if self._kept is None else streams[self._kept]
            self._means[layer] = kept.float().mean(1).to(streams.dtype)

    def joined(self) -> torch.Tensor | None:
        """[rows, taps * D]; None = these layers had none of the taps."""
        if len(self._means) < len(self._layers):
            return None
        return torch.cat([self._means[layer] for layer in self._layers], dim=-1)


class DsparkModule:
    """All stages, and what stands before and behind them."""

    def __init__(
        self, weights: DeepseekWeights, config: DeepseekConfig, embedding: torch.Tensor,
        output: Linear, rope: RopeTable,
    ) -> None:  # fmt: skip
        """embedding, output: the model's; rope: of its windows. Raises: CorruptModel."""
        assert config.dspark is not None
        self._config, self._embedding, self._rope = config, embedding, rope
        self.config = config.dspark
        hidden, dim = config.hidden, config.head_dim
        prefixes = [f"mtp.{stage}" for stage in range(self.config.num_stages)]
        weights.check_shape(_MAIN, (hidden, self.config.num_stages * hidden))
        self._main = weights.linear(_MAIN)
        self._main_norm = weights.vector("mtp.0.main_norm.weight", (hidden,))
        self._stages = [_Stage(weights, prefix, config, rope) for prefix in prefixes]
        self._context_kv = weights.linear(*(f"{prefix}.attn.wkv.weight" for prefix in prefixes))
        norms = [weights.vector(f"{prefix}.attn.kv_norm.weight", (dim,)) for prefix in prefixes]
        self._context_norms = torch.stack(norms)
        self._head = FinalHead(weights, config, prefix=f"{prefixes[-1]}.", output=output)
        self._heads = _heads(weights, prefixes[-1], config)

    def taps(self, rows: Rows) -> Taps:
        """For the rows of a pass through some layers."""
        return Taps(self.config.taps, rows, self._config.window)

    def keep(self, taps: Taps, views: KvViews) -> None:
        """Every stage's keys of these rows go to their slots."""
        joined = taps.joined()
        if joined is None:
            return
        eps, ring = self._config.eps, views.draft
        context = rms_norm(self._main(joined), self._main_norm, eps)
        kv = self._context_kv(context).view(len(joined), -1, self._config.head_dim)
        angles = self._rope.at(taps.positions, taps.end)
        kv = rotate(rms_norm(kv, self._context_norms, eps), *angles)
        ring[taps.slots, taps.positions % ring.shape[1]] = kv

    @torch.no_grad()
    def draft(self, anchors: Sequence[Anchor], views: KvViews, sampler: Sampler) -> Drafts:
        """A block of guesses behind every anchor; at least one anchor."""
        first = torch.tensor([anchor.token_id for anchor in anchors], device=views.draft.device)
        return self._heads.guess(self.rows(anchors, views), first, sampler)

    @torch.no_grad()
    def rows(self, anchors: Sequence[Anchor], views: KvViews) -> GuessRows:
        """What the stages say, before anything is guessed."""
        block, ring = self.config.block, views.draft
        rows = BlockRows.behind(list(anchors), block, self._config.window, ring.device)
        ids = np.full((len(anchors), block), self.config.noise_id, np.int64)
        ids[:, 0] = [anchor.token_id for anchor in anchors]
        token_ids = torch.from_numpy(ids.ravel()).to(ring.device)
        embedded = functional.embedding(token_ids, self._embedding)
        n = self._config.streams.num_streams
        pre = torch.zeros((len(embedded), n), device=embedded.device)
        pre[:, 0] = 1
        streams = Streams(embedded[:, None, :].repeat(1, n, 1), pre)
        for number, stage in enumerate(self._stages):
            streams = stage(streams, token_ids, rows, ring[:, :, number])
        hidden = self._head.collapsed(streams.values, streams.pre)
        logits = self._head.of_collapsed(hidden)
        shape = (len(anchors), block, -1)
        return GuessRows(hidden.view(shape), logits.view(shape))


def _heads(weights: DeepseekWeights, prefix: str, config: DeepseekConfig) -> DraftHeads:
    """prefix: such as mtp.2. Raises: CorruptModel."""
    assert config.dspark is not None
    rank, shape = config.dspark.rank, (config.vocab_size, config.dspark.rank)
    weights.check_shape(f"{prefix}.markov_head.head.weight", shape)
    confidence = f"{prefix}.confidence_head.proj.weight"
    return DraftHeads(
        before=weights.get(f"{prefix}.markov_head.embed.weight", shape),
        bias=weights.linear(f"{prefix}.markov_head.head.weight"),
        confidence=weights.vector(confidence, (1, config.hidden + rank)),
        temperatures=config.dspark.temperatures,
    )


class _Stage:
    """A layer whose rows see each other and a context, and nothing else."""

    def __init__(
        self, weights: DeepseekWeights, prefix: str, config: DeepseekConfig, rope: RopeTable
    ) -> None:
        draft = config.dspark
        assert draft is not None
        plan = LayerPlan(config.num_layers, 0, "window", None, None, None, False, "topk", False)
        moe = replace(config.moe, num_experts=draft.num_experts, top_k=draft.top_k)
        config = replace(config, moe=moe)
        self._attention_mix = HyperConnection.load(weights, prefix, "attn", config)
        self._moe_mix = HyperConnection.load(weights, prefix, "ffn", config)
        self._attention = BlockAttention(weights, f"{prefix}.attn", config, rope)
        self._moe = MoeLayer.load(weights, f"{prefix}.ffn", plan, config)

    def __call__(
        self, streams: Streams, token_ids: torch.Tensor, rows: BlockRows, ring: torch.Tensor
    ) -> Streams:
        """ring: this stage's keys of every slot, [slots, ring, d]."""
        x, mix = self._attention_mix.read(streams.values, streams.pre)
        output = self._attention(x, rows, ring)
        streams = Streams(self._attention_mix.write(streams.values, output, mix), mix.pre)
        x, mix = self._moe_mix.read(streams.values, streams.pre)
        output = self._moe(x, token_ids)
        return Streams(self._moe_mix.write(streams.values, output, mix), mix.pre)
