"""The text model: one pass over a whole sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.support.deepseek_reference.attention import (
    attend,
    latent_query,
    window_keys,
    window_mask,
)
from tests.support.deepseek_reference.compression import Entries, make_entries, visible
from tests.support.deepseek_reference.engram import EngramReference
from tests.support.deepseek_reference.experts import mixture
from tests.support.deepseek_reference.names import published
from tests.support.deepseek_reference.rotation import rms
from tests.support.deepseek_reference.selection import Choice, candidate_blocks, choose
from tests.support.deepseek_reference.shape import Role, Shape
from tests.support.deepseek_reference.streams import collapse, expand, head_weights, mixing
from tests.support.deepseek_reference.tensors import Tensors


@dataclass(frozen=True)
class Rule:
    """Which keys of the windows exist. The defaults are the exact model.

    floor: windows begin here at the earliest, in every layer (a replay after a prefix hit).
    late_floor: the same in late layers (a prompt of which only the tail runs through them).
    stored: by owning layer, the first entries as they were stored before.
    """

    floor: int = 0
    late_floor: int = 0
    stored: Mapping[int, Entries] = field(default_factory=dict)

    @classmethod
    def tail(cls, num_tokens: int, window: int) -> Rule:
        """Late layers run over the last `window` rows only; earlier rows of them mean nothing."""
        return cls(late_floor=max(0, num_tokens - window))


@dataclass
class Trace:
    """Everything of one pass. streams: [T, n, D] entering each layer, and behind the last."""

    streams: list[torch.Tensor] = field(default_factory=list)
    entries: dict[int, Entries] = field(default_factory=dict)
    choices: dict[int, Choice] = field(default_factory=dict)
    experts: list[torch.Tensor] = field(default_factory=list)
    allowed: dict[int, torch.Tensor] = field(default_factory=dict)
    hidden: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """Behind the collapse, before the final norm."""
    logits: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    def stored(self, num_tokens: int, shape: Shape) -> dict[int, Entries]:
        """Entries of the first tokens, as a store would have kept them."""
        kept = {}
        for layer, entries in self.entries.items():
            count = num_tokens // shape.roles[layer].ratio
            index_keys = entries.index_keys
            kept[layer] = Entries(
                entries.keys[:count], None if index_keys is None else index_keys[:count]
            )
        return kept


class TextReference:
    """config: the fields of config.json; tensors: the checkpoint, by published or HF names."""

    def __init__(
        self,
        config: dict[str, Any],
        tensors: Mapping[str, torch.Tensor],
        dtype: torch.dtype = torch.float64,
        token_map: Sequence[int] | None = None,
    ) -> None:
        self.shape = Shape(config)
        self.tensors = Tensors(published(tensors), dtype)
        has_engram = any(role.has_engram for role in self.shape.roles)
        if has_engram and token_map is None:
            raise ValueError("a model with Engram needs the compressed id of every token")
        self._engram = EngramReference(self.shape, token_map or ()) if has_engram else None

    def __call__(
        self,
        ids: Sequence[int],
        rule: Rule | None = None,
        embeddings: Mapping[int, torch.Tensor] | None = None,
    ) -> Trace:
        """A pass over all ids. embeddings: of rows that do not take their id's (images)."""
        shape, trace = self.shape, Trace()
        x = self.tensors["embed.weight"][torch.tensor(ids, dtype=torch.long)]
        for row, vector in (embeddings or {}).items():
            x[row] = vector.to(x)
        residual = x.unsqueeze(1).expand(-1, shape.streams, -1)
        pre = x.new_zeros(len(x), shape.streams)
        pre[:, 0] = 1  # lagged: the first sublayer reads stream 0
        for layer, role in enumerate(shape.roles):
            trace.streams.append(residual)
            tensors = self.tensors.at(f"layers.{layer}.")
            if role.has_engram:
                assert self._engram is not None
                residual = self._engram.apply(residual, ids, layer, tensors.at("engram."))
            step = _Layer(shape, role, layer, tensors, rule or Rule(), trace)
            residual, pre = step.run(residual, pre, ids)
        trace.streams.append(residual)
        if not shape.lagged:
            pre = head_weights(residual, self.tensors, "", shape)
        trace.hidden = collapse(residual, pre)
        trace.logits = self.logits(trace.hidden, self.tensors["norm.weight"])
        return trace

    def logits(self, hidden: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        """By a final norm and the output matrix."""
        return rms(hidden, self.shape.eps, norm) @ self.tensors["head.weight"].T


class _Layer:
    def __init__(
        self, shape: Shape, role: Role, layer: int, tensors: Tensors, rule: Rule, trace: Trace
    ) -> None:
        self.shape, self.role, self.layer = shape, role, layer
        self.tensors, self.rule, self.trace = tensors, rule, trace

    def run(
        self, residual: torch.Tensor, pre: torch.Tensor, ids: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        token_ids = torch.tensor(ids, dtype=torch.long)

        def experts(x: torch.Tensor) -> torch.Tensor:
            ffn = self.tensors.at("ffn.")
            out, chosen = mixture(x, token_ids, ffn, self.shape, hashed=self.role.hashed)
            self.trace.experts.append(chosen)
            return out

        for name, sublayer in (("attn", self._attend), ("ffn", experts)):
            residual, pre = sublayer_step(residual, pre, self.tensors, self.shape, name, sublayer)
        return residual, pre

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        shape, role, tensors = self.shape, self.role, self.tensors.at("attn.")
        rotation = shape.main if role.kind == "window" else shape.compress
        positions = torch.arange(len(x))
        latent = latent_query(x, tensors, shape)
        keys = window_keys(x, positions, tensors, shape, rotation)
        floor = max(self.rule.floor, self.rule.late_floor) if role.is_late else self.rule.floor
        mask = window_mask(len(x), shape.window, floor)
        if role.kind != "window":
            entries = self._entries(x, tensors)
            keys = torch.cat([keys, entries.keys])
            mask = torch.cat([mask, self._seen(x, latent, entries, tensors)], 1)
        return attend(latent, positions, keys, mask, tensors, shape, rotation)

    def _entries(self, x: torch.Tensor, tensors: Tensors) -> Entries:
        if self.role.source == self.layer:
            made = make_entries(x, tensors, self.role, self.shape)
            if self.layer in self.rule.stored:
                made = made.with_first(self.rule.stored[self.layer])
            self.trace.entries[self.layer] = made
        return self.trace.entries[self.role.source]

    def _seen(
        self, x: torch.Tensor, latent: torch.Tensor, entries: Entries, tensors: Tensors
    ) -> torch.Tensor:
        """[T, E] of the entries that every row attends to."""
        role, config = self.role, self.shape.config
        if role.index_source is None:
            return visible(len(x), len(entries.keys), role.ratio)
        if role.index_source == self.layer:
            source = config.get("candidate_source_layer")
            behind = source is not None and self.layer > source
            allowed = self.trace.allowed[source] if behind and role.kind == "latent" else None
            indexer = tensors.at("indexer.")
            choice = choose(x, latent, entries, allowed, indexer, role, self.shape)
            self.trace.choices[self.layer] = choice
            if self.layer == source:
                may = visible(len(x), len(entries.keys), role.ratio)
                self.trace.allowed[source] = candidate_blocks(
                    choice.scores,
                    may,
                    config.get("candidate_blocks", 2048),
                    config.get("candidate_block_entries", 8),
                )
        return self.trace.choices[role.index_source].chosen


def sublayer_step(
    residual: torch.Tensor,
    pre: torch.Tensor,
    tensors: Tensors,
    shape: Shape,
    name: str,
    sublayer: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One sublayer between the streams; `pre` is the sublayer's before, and its own comes back."""
    own, post, mix = mixing(residual, tensors, f"hc_{name}", shape)
    x = collapse(residual, pre if shape.lagged else own)
    y = sublayer(rms(x, shape.eps, tensors[f"{name}_norm.weight"]))
    return expand(residual, y, post, mix), own
