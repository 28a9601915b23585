"""The text model with gradients: the engine's formulas over whole padded sequences.

Late layers run on a span of every sequence only, as they do when a prompt is served: from the last
window of the prompt to the end of what was answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.plan import LayerPlan
from torch.nn import functional

from training.tiny_v41.model import streams as mhc
from training.tiny_v41.model.attention import HIDDEN, attend
from training.tiny_v41.model.entries import (
    Entries,
    Index,
    compress,
    entry_shares,
    index_loss,
    visible,
)
from training.tiny_v41.model.experts import mix_experts
from training.tiny_v41.model.pieces import Rope, matmul, rms_norm

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Sequences:
    """Padded sequences and their late spans; S is even."""

    ids: torch.Tensor
    """int64 [B, S]"""
    lengths: torch.Tensor
    """int64 [B]"""
    late_begins: torch.Tensor
    """int64 [B]"""
    late_length: int
    """L; rows of a span behind the sequence's end are padding"""
    probes: torch.Tensor
    """int64 [B, R]: rows whose attention teaches the index"""
    late_probes: torch.Tensor
    """the same among the rows of the late spans"""
    images: torch.Tensor | None = None
    """fp32 [rows of all images, D], in the order of the sequences' image positions"""

    @property
    def late_positions(self) -> torch.Tensor:
        """int64 [B, L], those of padding clamped into the sequence."""
        reach = torch.arange(self.late_length)
        return (self.late_begins[:, None] + reach).clamp_max(self.ids.shape[1] - 1)


@dataclass
class Result:
    """What a pass leaves."""

    streams: torch.Tensor
    """fp32 [B, L, n, D] of late rows"""
    pre: torch.Tensor
    """fp32 [B, L, n]"""
    index_loss: torch.Tensor
    """mean over index sources"""
    expert_counts: torch.Tensor
    """int64 [layers, 2, experts]: rows of text and of images"""
    taps: list[torch.Tensor] = field(default_factory=list)
    """fp32 [B, L, D]: mean of the streams that enter the tapped layers"""


@dataclass
class _Rows:
    """Rows that go through layers together, [B, S]."""

    positions: torch.Tensor
    is_image: torch.Tensor | None
    is_real: torch.Tensor
    probes: torch.Tensor


@dataclass
class _Chosen:
    """One index source's choice, and what is learned about it."""

    entries: Entries
    mask: torch.Tensor
    scores: torch.Tensor | None = None
    shares: torch.Tensor | None = None


class TextModel:
    """Formulas of one configuration; the weights come with every call."""

    def __init__(self, config: DeepseekConfig, max_positions: int) -> None:
        self.config = config
        self._main = Rope(config.rope_main, config.rope_dim, max_positions)
        self._far = Rope(config.rope_compress, config.rope_dim, max_positions)

    def __call__(self, weights: Weights, given: Sequences, *, selects: bool) -> Result:
        """weights: by checkpoint name, experts joined; matrices in the dtype of the products.

        selects: rows see the entries that the index chooses, else all.
        """
        return _Pass(self, weights, given, selects=selects).run()

    def logits(self, weights: Weights, streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
        """fp32 [N, V] of streams [N, n, D]."""
        return self.output(weights, (streams * pre[..., None]).sum(1), "norm.weight")

    def output(self, weights: Weights, rows: torch.Tensor, norm: str) -> torch.Tensor:
        """fp32 logits [N, V] of collapsed rows [N, D]."""
        normed = rms_norm(rows, weights[norm], self.config.eps)
        return matmul(normed.to(weights["head.weight"].dtype), weights["head.weight"]).float()

    def rope_of(self, plan: LayerPlan) -> Rope:
        return self._main if plan.kind == "window" else self._far


class _Pass:
    """One pass through all layers."""

    def __init__(
        self, model: TextModel, weights: Weights, given: Sequences, *, selects: bool
    ) -> None:
        self._model, self._config = model, model.config
        self._weights, self._given, self._selects = weights, given, selects
        self._counts: list[torch.Tensor] = []
        self._taps: dict[int, torch.Tensor] = {}
        self._owned: dict[int, Entries] = {}
        self._choices: dict[int, _Chosen] = {}
        self._blocks: dict[int, list[torch.Tensor]] = {}
        layers = range(self._config.num_layers)
        self._by_layer = [under(weights, f"layers.{layer}.") for layer in layers]

    def run(self) -> Result:
        first_late = self._config.num_encoder_layers
        rows, streams, pre = self._embed()
        for plan in self._config.layers[:first_late]:
            streams, pre = self._layer(plan, streams, pre, rows)
        if first_late < self._config.num_layers:
            late, x = self._compress_late(self._config.layers[first_late], streams, pre, rows)
            self._owned[first_late] = x
            streams, pre = (picked(values, late.positions) for values in (streams, pre))
            rows = late
        for plan in self._config.layers[first_late:]:
            streams, pre = self._layer(plan, streams, pre, rows)
        self._tap(self._config.num_layers, streams)
        taps = self._config.dspark.taps if self._config.dspark else ()
        return Result(
            streams,
            pre,
            self._index_loss(),
            torch.stack(self._counts),
            [self._taps[layer] for layer in taps],
        )

    def _embed(self) -> tuple[_Rows, torch.Tensor, torch.Tensor]:
        given, config = self._given, self._config
        n = config.streams.num_streams
        embedded = functional.embedding(given.ids, self._weights["embed.weight"])
        is_image = given.ids.eq(-1 if config.image_token_id is None else config.image_token_id)
        has_images = given.images is not None and bool(is_image.any())
        if has_images and given.images is not None:
            embedded = embedded.masked_scatter(is_image[..., None], given.images)
        positions = torch.arange(given.ids.shape[1]).expand_as(given.ids)
        is_real = positions < given.lengths[:, None]
        rows = _Rows(positions, is_image if has_images else None, is_real, given.probes)
        pre = torch.zeros((*given.ids.shape, n))
        pre[..., 0] = 1
        return rows, embedded[:, :, None].repeat(1, 1, n, 1), pre

    def _compress_late(
        self, plan: LayerPlan, streams: torch.Tensor, pre: torch.Tensor, rows: _Rows
    ) -> tuple[_Rows, Entries]:
        """The late rows, and the entries that all rows leave for them."""
        x, _ = self._read(streams, pre, self._by_layer[plan.index], "attn")
        entries = self._compressed(x.view(*streams.shape[:2], -1), plan)
        positions = self._given.late_positions
        places = torch.arange(len(positions))[:, None], positions
        is_image = None if rows.is_image is None else rows.is_image[places]
        reach = self._given.late_begins[:, None] + torch.arange(self._given.late_length)
        is_real = reach < self._given.lengths[:, None]
        return _Rows(positions, is_image, is_real, self._given.late_probes), entries

    def _compressed(self, x: torch.Tensor, plan: LayerPlan) -> Entries:
        rope = self._model.rope_of(plan)
        return compress(
            self._narrow(x), self._by_layer[plan.index], plan.ratio, rope, self._config.eps
        )

    def _narrow(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self._weights["head.weight"].dtype)

    def _tap(self, layer: int, streams: torch.Tensor) -> None:
        if self._config.dspark is not None and layer in self._config.dspark.taps:
            self._taps[layer] = streams.mean(2)

    def _read(
        self, streams: torch.Tensor, pre: torch.Tensor, weights: Weights, part: str
    ) -> tuple[torch.Tensor, mhc.Mix]:
        mixing = self._config.streams
        return mhc.read(
            streams.flatten(0, 1), pre.flatten(0, 1), weights, part,
            eps=self._config.eps, hc_eps=mixing.eps, iterations=mixing.iterations,
        )  # fmt: skip

    def _layer(
        self, plan: LayerPlan, streams: torch.Tensor, pre: torch.Tensor, rows: _Rows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weights, shape = self._by_layer[plan.index], streams.shape
        self._tap(plan.index, streams)
        x, mix = self._read(streams, pre, weights, "attn")
        output = self._attention(x.view(*shape[:2], -1), plan, rows)
        streams = mhc.write(streams.flatten(0, 1), output.flatten(0, 1), mix).view(shape)
        x, mixed = self._read(streams, mix.pre.view(pre.shape), weights, "ffn")
        is_image = None if rows.is_image is None else rows.is_image.flatten()
        output, experts = mix_experts(x, weights, self._config.moe, is_image)
        self._count(experts, rows)
        streams = mhc.write(streams.flatten(0, 1), output, mixed).view(shape)
        return streams, mixed.pre.view(pre.shape)

    def _attention(self, x: torch.Tensor, plan: LayerPlan, rows: _Rows) -> torch.Tensor:
        config, weights = self._config, self._by_layer[plan.index]
        rope = self._model.rope_of(plan)
        narrow = self._narrow(x)
        q_latent = matmul(narrow, weights["attn.wq_a.weight"]).float()
        q_latent = self._narrow(rms_norm(q_latent, weights["attn.q_norm.weight"], config.eps))
        query = matmul(q_latent, weights["attn.wq_b.weight"]).float()
        query = query.view(*x.shape[:2], config.num_heads, config.head_dim)
        query = rope.turn(query, rows.positions)
        kv = matmul(narrow, weights["attn.wkv.weight"]).float()
        kv = rope.turn(rms_norm(kv, weights["attn.kv_norm.weight"], config.eps), rows.positions)
        if plan.owns_entries and plan.index not in self._owned:
            self._owned[plan.index] = self._compressed(x, plan)
        chosen = self._choose(x, q_latent, plan, rows)
        far = (chosen.entries.values, chosen.mask) if chosen else (None, None)
        sinks = weights["attn.attn_sink"]
        output, log_total = attend(query, kv, sinks, config.window, *far, dtype=narrow.dtype)
        if chosen is not None and chosen.scores is not None:
            shares = entry_shares(query, log_total, chosen.entries, rows.positions, rows.probes)
            chosen.shares = shares if chosen.shares is None else chosen.shares + shares
        output = self._narrow(rope.turn(output, rows.positions, back=True).flatten(2))
        groups, matrix = config.out_groups, weights["attn.wo_a.weight"].to(output.dtype)
        grouped = torch.einsum(
            "bsgi,goi->bsgo",
            output.view(*x.shape[:2], groups, -1),
            matrix.view(groups, config.out_rank, -1),
        )
        return matmul(grouped.flatten(2), weights["attn.wo_b.weight"]).float()

    def _choose(
        self, x: torch.Tensor, q_latent: torch.Tensor, plan: LayerPlan, rows: _Rows
    ) -> _Chosen | None:
        if plan.kv_source is None or plan.index_source is None:
            return None
        if not plan.selects:
            return self._choices[plan.index_source]
        entries = self._owned[plan.kv_source]
        rope = self._model.rope_of(plan)
        index = Index(
            x, q_latent, rows.positions, self._by_layer[plan.index], self._config.index, rope
        )
        if self._selects:
            makes_blocks = plan.candidate_source == plan.index
            has_bounds = plan.candidate_source is not None and not makes_blocks
            bounds = self._blocks[plan.candidate_source or 0] if has_bounds else None
            mask, made = index.choose(entries, bounds, makes_blocks=makes_blocks)
            self._blocks[plan.index] = made
        else:
            is_seen = visible(rows.positions, entries)
            mask = torch.zeros(is_seen.shape).masked_fill_(~is_seen, HIDDEN)
        scores = index.scores(entries, rows.probes) if torch.is_grad_enabled() else None
        self._choices[plan.index] = _Chosen(entries, mask, scores)
        return self._choices[plan.index]

    def _count(self, experts: torch.Tensor, rows: _Rows) -> None:
        num_experts, is_real = self._config.moe.num_experts, rows.is_real.flatten()
        is_image = torch.zeros_like(is_real) if rows.is_image is None else rows.is_image.flatten()
        counts = [
            experts[part].flatten().bincount(minlength=num_experts)
            for part in (is_real & ~is_image, is_real & is_image)
        ]
        self._counts.append(torch.stack(counts))

    def _index_loss(self) -> torch.Tensor:
        losses = [
            index_loss(chosen.scores, chosen.shares)
            for chosen in self._choices.values()
            if chosen.scores is not None and chosen.shares is not None
        ]
        return torch.stack(losses).mean() if losses else torch.zeros(())


def picked(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Some rows of every sequence; values: [B, S, ...]; rows: int64 [B, R]. Gives [B, R, ...]."""
    places = torch.arange(len(values))[:, None] * values.shape[1] + rows
    found = values.flatten(0, 1).index_select(0, places.flatten())
    return found.view(*rows.shape, *values.shape[2:])


def under(weights: Weights, prefix: str) -> Weights:
    """Those of one layer or stage, by the rest of their names."""
    return {
        name.removeprefix(prefix): value
        for name, value in weights.items()
        if name.startswith(prefix)
    }
