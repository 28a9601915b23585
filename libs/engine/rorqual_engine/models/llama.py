"""The Llama family: RMSNorm, RoPE, grouped-query attention, SwiGLU."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from rorqual_engine.batch import Batch, SequenceChunk, lay_out
from rorqual_engine.errors import BadChunk, UnsupportedModel
from rorqual_engine.kernels.ops import KernelOps, supports
from rorqual_engine.kv import LAYOUT_VERSION, PagedKvCache, uniform_layout
from rorqual_engine.models.base import CausalModel
from rorqual_engine.models.drafts import Anchor, Drafts, Sampler, greedy
from rorqual_engine.models.linear import Linear
from rorqual_engine.models.llama_draft import LlamaDraft, LlamaDraftConfig, Taps
from rorqual_engine.models.llama_layer import LlamaConfig, LlamaLayer
from rorqual_engine.models.options import LoadOptions
from rorqual_engine.models.weights import Weights
from rorqual_engine.ops import LayerOps, StepOps
from rorqual_engine.ref import TorchOps
from rorqual_engine.rope import RopeTable, build_table


class LlamaModel(CausalModel):
    """Llama, SmolLM, Qwen2 and whatever else has this shape."""

    def __init__(
        self,
        config: dict[str, Any],
        weights: Weights,
        *,
        content_id: str,
        device: torch.device,
        dtype: torch.dtype,
        options: LoadOptions,
    ) -> None:
        if options.group is not None:
            raise UnsupportedModel("a model of the Llama family has no experts to share")
        self.config = LlamaConfig.from_hf(config)
        self.device, self.dtype = device, dtype
        self.vocab_size = self.config.vocab_size
        self.max_context_tokens = self.config.max_context_tokens
        self.eos_token_ids = self.config.eos_token_ids
        shape, num_layers = self.config.shape, self.config.num_layers
        weights.check_shape("model.embed_tokens.weight", (self.vocab_size, self.config.hidden))
        self._embedding = weights.get("model.embed_tokens.weight")
        prefixes = [f"model.layers.{index}" for index in range(num_layers)]
        self._layers = [LlamaLayer.load(weights, prefix, self.config) for prefix in prefixes]
        self._norm = weights.get("model.norm.weight")
        tied = self.config.tied_head or "lm_head.weight" not in weights
        head = self._embedding if tied else weights.get("lm_head.weight")
        self._head = Linear(head)
        drafts = LlamaDraftConfig.find(config, num_layers) if options.drafts else None
        self.dspark: LlamaDraft | None = None
        """A draft of a block of tokens, where it was asked for and the checkpoint has it."""
        if drafts is not None:
            self.dspark = LlamaDraft(weights, self.config, drafts, self._embedding, head)
            self.num_drafts, num_layers = drafts.block, num_layers + drafts.num_layers
        self.kv_layout = uniform_layout(num_layers, 2 * shape.kv_dim * dtype.itemsize, "block")
        self.fingerprint = _fingerprint(content_id, dtype, num_layers)
        rope = build_table(self.config.rope, self.max_context_tokens, dtype, device)
        self._ops = _choose_ops(self.config, rope, device, dtype)

    @torch.no_grad()
    def forward(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> torch.Tensor:
        batch = self._lay_out(chunks, cache)
        step = self._ops.begin(batch, cache)
        wanted = torch.from_numpy(batch.logits_rows).to(self.device)
        if self.dspark is not None:
            taps = Taps(self.dspark.config.taps)
            last = self._run(batch, step, taps)
            self.dspark.keep(step, taps.joined())
            return self._logits(last[wanted])
        return self._logits(self._run(batch, step, wanted=wanted))

    @torch.no_grad()
    def seen(
        self, chunks: Sequence[SequenceChunk], cache: PagedKvCache, layers: Sequence[int]
    ) -> torch.Tensor:
        """What the attention of these layers sees, side by side: [T, layers * D], layers in
        ascending order; num_layers = the head. KV is written as by forward."""
        batch = self._lay_out(chunks, cache)
        taps = Taps(layers)
        self._run(batch, self._ops.begin(batch, cache), taps)
        return taps.joined()

    def _run(
        self,
        batch: Batch,
        step: StepOps,
        taps: Taps | None = None,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """What the head sees of the wanted rows, else of all. [rows, D]"""
        token_ids = torch.from_numpy(batch.token_ids).to(self.device)
        hidden = functional.embedding(token_ids, self._embedding)
        delta: torch.Tensor | None = None
        for index, layer in enumerate(self._layers):
            seen, delta = layer(step, index, hidden, delta)
            if taps is not None:
                taps.see(index, seen)
        assert delta is not None
        if wanted is not None:
            hidden, delta = hidden[wanted], delta[wanted]
        last = step.add_norm(hidden, delta, self._norm)
        if taps is not None:
            taps.see(len(self._layers), last)
        return last

    def _logits(self, rows: torch.Tensor) -> torch.Tensor:
        """rows: what the head sees, possibly none."""
        if not len(rows):
            return rows.new_empty((0, self.vocab_size))
        logits = self._head(rows)
        return logits if self.device.type == "cpu" else logits.float()

    @torch.no_grad()
    def draft(
        self, anchors: Sequence[Anchor], cache: PagedKvCache, sampler: Sampler = greedy
    ) -> Drafts:
        if self.dspark is None:
            return super().draft(anchors, cache, sampler)
        batch = self._lay_out([self.dspark.chunk(anchor) for anchor in anchors], cache)
        return self.dspark.draft(batch, self._ops.begin(batch, cache), sampler)

    def _lay_out(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> Batch:
        if cache.layout != self.kv_layout:
            raise BadChunk("the cache was made for another model")
        return lay_out(
            chunks, cache, vocab_size=self.vocab_size, max_context_tokens=self.max_context_tokens
        )


def _choose_ops(
    config: LlamaConfig, rope: RopeTable, device: torch.device, dtype: torch.dtype
) -> LayerOps:
    """The compiled kernels where they fit device, dtype and sizes, else plain torch."""
    is_cpu_bf16 = device.type == "cpu" and dtype == torch.bfloat16
    if is_cpu_bf16 and supports(config.shape, config.hidden, config.inner):
        return KernelOps(config.shape, rope, config.eps)
    return TorchOps(config.shape, rope, config.eps)


def _fingerprint(content_id: str, dtype: torch.dtype, num_layers: int) -> str:
    """num_layers: that keep KV, those of a draft module included."""
    text = f"llama|{content_id}|{dtype}|layout={LAYOUT_VERSION}|layers={num_layers}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
