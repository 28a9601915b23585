"""DSpark for plain models: a few layers that guess a block of tokens behind the last one at once.

They see what some of the model's layers see (taps): of every row that the model has run, each of
them keeps a key and a value, made of its taps, in pages like those of the model's own layers. So
they are stored, moved and taken back with the rest of a sequence's KV. A block is as many rows as
there are guesses; each knows the last token, which the model has not run yet, and its place. What a
block writes lies where that token and those behind it will be written once they have run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from rorqual_engine.batch import Batch, SequenceChunk
from rorqual_engine.kv import PAGE_TOKENS
from rorqual_engine.models.deepseek.dspark_config import MOST_DRAFTS, confidence_temperatures
from rorqual_engine.models.deepseek.fields import Fields
from rorqual_engine.models.drafts import Anchor, Drafts, Sampler
from rorqual_engine.models.dspark_heads import DraftHeads, GuessRows
from rorqual_engine.models.linear import Linear
from rorqual_engine.models.llama_layer import LlamaConfig, LlamaLayer
from rorqual_engine.models.weights import Weights
from rorqual_engine.ops import StepOps

_MAIN = "mtp.0.main_proj.weight"


@dataclass(frozen=True)
class LlamaDraftConfig:
    """The keys of dspark_config."""

    block: int
    """Tokens guessed at once."""
    taps: tuple[int, ...]
    """Layers of the model, ascending: what their attention sees; num_hidden_layers = the head."""
    num_layers: int
    """Of the draft module, in sizes like the model's."""
    rank: int
    """Width of what the token before a guess says about it."""
    num_tokens: int
    """That may be guessed: a part of the vocabulary."""
    temperatures: tuple[float, ...]
    """By place in the block: what the confidence is divided by."""

    @classmethod
    def find(cls, config: dict[str, Any], num_target_layers: int) -> LlamaDraftConfig | None:
        """None where the checkpoint has no draft module. Raises: CorruptModel."""
        fields = Fields(config)
        if fields.optional_group("dspark_config") is None:
            return None
        group = fields.group("dspark_config")
        block = group.whole("block")
        group.check(block <= MOST_DRAFTS, "block", f"is more than {MOST_DRAFTS}")
        taps = group.layer_ids("taps", num_target_layers + 1)
        group.check(bool(taps), "taps", "names no layer")
        num_tokens = group.whole("num_draft_tokens")
        group.check(num_tokens <= fields.whole("vocab_size"), "num_draft_tokens", "is too large")
        return cls(
            block, taps, group.whole("num_layers"), group.whole("rank"), num_tokens,
            confidence_temperatures(group, block),
        )  # fmt: skip


class Taps:
    """What the layers of one pass have seen."""

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers = layers
        self._seen: list[torch.Tensor] = []

    def see(self, layer: int, rows: torch.Tensor) -> None:
        """rows: [T, D], what the layer's attention sees."""
        if layer in self._layers:
            self._seen.append(rows)

    def joined(self) -> torch.Tensor:
        """[T, taps * D]"""
        return torch.cat(self._seen, dim=-1)


class LlamaDraft:
    """Weights of the module; its layers' KV lies behind that of the model's layers."""

    def __init__(
        self,
        weights: Weights,
        model: LlamaConfig,
        config: LlamaDraftConfig,
        embedding: torch.Tensor,
        head: torch.Tensor,
    ) -> None:
        """embedding, head: the model's, [V, D]. Raises: CorruptModel."""
        self._model, self.config, self._embedding = model, config, embedding
        hidden, last = model.hidden, f"mtp.{config.num_layers - 1}"
        shapes = {
            _MAIN: (hidden, len(config.taps) * hidden),
            "mtp.0.block_embed.weight": (config.block, hidden),
            f"{last}.token_ids": (config.num_tokens,),
            f"{last}.markov_head.embed_proj.weight": (config.rank, hidden),
            f"{last}.markov_head.head.weight": (config.num_tokens, config.rank),
            f"{last}.confidence_head.proj.weight": (1, hidden + config.rank),
        }
        for name, shape in shapes.items():
            weights.check_shape(name, shape)
        self._main = Linear(weights.get(_MAIN))
        self._main_norm = weights.get("mtp.0.main_norm.weight")
        self._places = weights.get("mtp.0.block_embed.weight")
        prefixes = [f"mtp.{layer}" for layer in range(config.num_layers)]
        self._layers = [LlamaLayer.load(weights, prefix, model) for prefix in prefixes]
        self._context_kv = [_context_kv(weights, prefix) for prefix in prefixes]
        self._norm = weights.get(f"{last}.norm.weight")
        token_ids = weights.whole_numbers(f"{last}.token_ids")
        self._head = Linear(head[token_ids])
        told = Linear(weights.get(f"{last}.markov_head.embed_proj.weight"))
        self._heads = DraftHeads(
            before=told(embedding),
            bias=Linear(weights.get(f"{last}.markov_head.head.weight")),
            confidence=weights.get(f"{last}.confidence_head.proj.weight").float(),
            temperatures=config.temperatures,
            token_ids=token_ids,
        )

    def keep(self, step: StepOps, taps: torch.Tensor) -> None:
        """Every layer's keys and values of a pass's rows go to their pages. taps: [T, taps * D]"""
        shape = self._model.shape
        context = step.add_norm(self._main(taps), None, self._main_norm)
        for number, linear in enumerate(self._context_kv):
            kv = linear(context)
            qkv = kv.new_empty((len(kv), shape.q_dim + 2 * shape.kv_dim))
            qkv[:, shape.q_dim :] = kv
            step.write(self._model.num_layers + number, qkv)

    def chunk(self, anchor: Anchor) -> SequenceChunk:
        """The rows of a block: fewer than its guesses where pages or context end before."""
        end = min(len(anchor.pages) * PAGE_TOKENS, self._model.max_context_tokens)
        count = max(1, min(self.config.block, end - anchor.position))
        return SequenceChunk([anchor.token_id] * count, anchor.position, anchor.pages)

    def draft(self, batch: Batch, step: StepOps, sampler: Sampler) -> Drafts:
        """A block of guesses for each chunk of the batch; those without a row repeat the last."""
        device = self._embedding.device
        ids = torch.from_numpy(batch.token_ids).to(device)
        edges = torch.from_numpy(batch.row_starts).long().to(device)
        begins, ends = edges[:-1], edges[1:]
        places = torch.arange(self.config.block, device=device)
        rows = torch.minimum(begins[:, None] + places, ends[:, None] - 1)
        own = torch.arange(len(ids), device=device) - begins.repeat_interleave(ends - begins)
        hidden = functional.embedding(ids, self._embedding) + self._places[own]
        delta: torch.Tensor | None = None
        for number, layer in enumerate(self._layers):
            _, delta = layer(step, self._model.num_layers + number, hidden, delta)
        logits = self._head(step.add_norm(hidden, delta, self._norm)).float()
        return self._heads.guess(GuessRows(hidden[rows], logits[rows]), ids[begins], sampler)


def _context_kv(weights: Weights, prefix: str) -> Linear:
    """The layer's keys and values alone."""
    names = [f"{prefix}.self_attn.{name}.weight" for name in ("k_proj", "v_proj")]
    return Linear(weights.stacked(names))
