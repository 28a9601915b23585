"""The draft module (DSpark) with gradients: blocks of guesses behind anchors of many sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from rorqual_engine.models.deepseek.config import DeepseekConfig
from torch.nn import functional

from training.tiny_v41.model import streams as mhc
from training.tiny_v41.model.attention import HIDDEN
from training.tiny_v41.model.experts import mix_experts
from training.tiny_v41.model.pieces import Rope, matmul, rms_norm
from training.tiny_v41.model.text import Result, Sequences, Weights, under


@dataclass(frozen=True)
class Anchors:
    """The tokens that blocks of guesses begin behind."""

    sequences: torch.Tensor
    """int64 [N]"""
    rows: torch.Tensor
    """int64 [N]: place of the anchor among its sequence's late rows"""


@dataclass(frozen=True)
class Guesses:
    """N blocks of g guesses, each told of the right token before it."""

    logits: torch.Tensor
    """fp32 [N, g, V]"""
    confidences: torch.Tensor
    """fp32 [N, g], before temperature and sigmoid"""
    expert_counts: torch.Tensor
    """int64 [stages, experts]"""


class DraftModel:
    """Formulas of one configuration; the weights come with every call."""

    def __init__(self, config: DeepseekConfig, max_positions: int) -> None:
        assert config.dspark is not None
        self.draft = config.dspark
        moe = replace(config.moe, num_experts=self.draft.num_experts, top_k=self.draft.top_k)
        self._config = replace(config, moe=moe)
        self._rope = Rope(config.rope_main, config.rope_dim, max_positions)

    def __call__(
        self,
        weights: Weights,
        given: Sequences,
        target: Result,
        anchors: Anchors,
        previous: torch.Tensor,
    ) -> Guesses:
        """target: of the frozen model's pass. previous: int64 [N, g], the token before each guess;
        the first is the anchor."""
        hidden, counts = self.hidden_rows(weights, given, target, anchors, previous[:, 0])
        return self._guessed(weights, hidden, previous, counts)

    def hidden_rows(
        self,
        weights: Weights,
        given: Sequences,
        target: Result,
        anchors: Anchors,
        first_ids: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(what the stages make of blocks, fp32 [N, g, D]; rows of every expert, by stage)."""
        config, block, count = self._config, self.draft.block, len(first_ids)
        dtype = weights["head.weight"].dtype
        joined = torch.cat(target.taps, dim=-1).to(dtype)
        context = matmul(joined, weights["mtp.0.main_proj.weight"]).float()
        context = rms_norm(context, weights["mtp.0.main_norm.weight"], config.eps).to(dtype)
        ids = torch.full((count, block), self.draft.noise_id)
        ids[:, 0] = first_ids
        begins = given.late_begins[anchors.sequences] + anchors.rows
        positions = begins[:, None] + torch.arange(block)
        embedded = functional.embedding(ids, weights["embed.weight"])
        n = config.streams.num_streams
        streams = embedded[:, :, None].repeat(1, 1, n, 1).flatten(0, 1)
        pre = torch.zeros((count * block, n))
        pre[:, 0] = 1
        counts = []
        for stage in range(self.draft.num_stages):
            own = under(weights, f"mtp.{stage}.")
            kv = self._keys(own, context, given.late_positions)
            x, mix = self._read(streams, pre, own, "attn")
            output = self._attend(own, x.view(count, block, -1).to(dtype), positions, kv, anchors)
            streams = mhc.write(streams, output.flatten(0, 1), mix)
            x, mixed = self._read(streams, mix.pre, own, "ffn")
            output, experts = mix_experts(x, own, config.moe, None)
            counts.append(experts.flatten().bincount(minlength=config.moe.num_experts))
            streams, pre = mhc.write(streams, output, mixed), mixed.pre
        hidden = (streams * pre[..., None]).sum(1)
        return hidden.view(count, block, -1), torch.stack(counts)

    def _read(
        self, streams: torch.Tensor, pre: torch.Tensor, weights: Weights, part: str
    ) -> tuple[torch.Tensor, mhc.Mix]:
        mixing = self._config.streams
        return mhc.read(
            streams, pre, weights, part,
            eps=self._config.eps, hc_eps=mixing.eps, iterations=mixing.iterations,
        )  # fmt: skip

    def _keys(self, weights: Weights, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """fp32 [B, S, d]"""
        kv = matmul(x, weights["attn.wkv.weight"]).float()
        kv = rms_norm(kv, weights["attn.kv_norm.weight"], self._config.eps)
        return self._rope.turn(kv, positions)

    def _attend(
        self,
        weights: Weights,
        x: torch.Tensor,
        positions: torch.Tensor,
        context: torch.Tensor,
        anchors: Anchors,
    ) -> torch.Tensor:
        """x: [N, g, D], in the dtype of products; context: keys of late rows [B, L, d]."""
        config, groups = self._config, self._config.out_groups
        q_latent = matmul(x, weights["attn.wq_a.weight"]).float()
        q_latent = rms_norm(q_latent, weights["attn.q_norm.weight"], config.eps).to(x.dtype)
        query = matmul(q_latent, weights["attn.wq_b.weight"]).float()
        query = query.view(*x.shape[:2], config.num_heads, config.head_dim)
        query = self._rope.turn(query, positions)
        before = anchors.rows[:, None] + torch.arange(-config.window, 0)
        seen = context[anchors.sequences[:, None], before.clamp_min(0)]
        keys = torch.cat([seen, self._keys(weights, x, positions)], dim=1)
        is_seen = functional.pad(before >= 0, (0, x.shape[1]), value=True)
        scores = torch.einsum("nghd,nkd->nhgk", query, keys) * config.head_dim**-0.5
        scores = scores.masked_fill(~is_seen[:, None, None, :], HIDDEN)
        sink = weights["attn.attn_sink"][None, :, None, None].expand(*scores.shape[:3], 1)
        shares = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
        output = torch.einsum("nhgk,nkd->nghd", shares, keys)
        output = self._rope.turn(output, positions, back=True).flatten(2).to(x.dtype)
        matrix = weights["attn.wo_a.weight"].to(x.dtype).view(groups, config.out_rank, -1)
        grouped = torch.einsum("ngai,aoi->ngao", output.view(*x.shape[:2], groups, -1), matrix)
        return matmul(grouped.flatten(2), weights["attn.wo_b.weight"]).float()

    def _guessed(
        self,
        weights: Weights,
        hidden: torch.Tensor,
        previous: torch.Tensor,
        counts: torch.Tensor,
    ) -> Guesses:
        last, dtype = f"mtp.{self.draft.num_stages - 1}.", weights["head.weight"].dtype
        normed = rms_norm(hidden, weights[f"{last}norm.weight"], self._config.eps)
        logits = matmul(normed.to(dtype), weights["head.weight"]).float()
        told = functional.embedding(previous, weights[f"{last}markov_head.embed.weight"])
        bias = matmul(told.to(dtype), weights[f"{last}markov_head.head.weight"]).float()
        both = torch.cat([hidden, told.float()], dim=-1)
        confidences = both @ weights[f"{last}confidence_head.proj.weight"][0]
        return Guesses(logits + bias, confidences, counts)


def draft_loss(
    guesses: Guesses,
    target_logits: torch.Tensor,
    labels: torch.Tensor,
    is_learned: torch.Tensor,
) -> torch.Tensor:
    """0.1 cross entropy + 0.9 distance to the model's distribution + calibration of confidence.

    target_logits: fp32 [N, g, V]; labels: int64 [N, g]; is_learned: bool [N, g]; what lies behind a
    block's first place that isn't counts nothing. Source: DSpark, section on training.
    """
    block = labels.shape[1]
    reach = is_learned.cumprod(1).float()
    weights = reach * torch.exp(-torch.arange(block) / block)
    weights = weights / weights.sum().clamp_min(1.0)
    shares, wanted = guesses.logits.softmax(-1), target_logits.softmax(-1)
    entropy = functional.cross_entropy(guesses.logits.mT, labels, reduction="none")
    distance = (shares - wanted).abs().sum(-1)
    accepted = (1 - 0.5 * distance.detach()).clamp(0, 1)
    surprise = functional.binary_cross_entropy_with_logits(
        guesses.confidences, accepted, reduction="none"
    )
    return ((0.1 * entropy + 0.9 * distance + surprise) * weights).sum()
