"""Compressed entries, their index keys, and which of them a row sees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rorqual_engine.models.deepseek.config import IndexConfig
from rorqual_engine.models.deepseek.indexer import best_blocks, best_entries, within_blocks
from torch.nn import functional

from training.tiny_v41.model.attention import HIDDEN
from training.tiny_v41.model.pieces import Rope, matmul, rms_norm

Weights = dict[str, torch.Tensor]
_SCORED_ROWS = 256
"""Rows whose scores are held at once."""


@dataclass(frozen=True)
class Entries:
    """Of one owner layer."""

    ratio: int
    values: torch.Tensor
    """fp32 [B, E, d]"""
    keys: torch.Tensor
    """fp32 [B, E, index dim]; nothing flows back through them but what they choose"""


def compress(x: torch.Tensor, weights: Weights, ratio: int, rope: Rope, eps: float) -> Entries:
    """x: [B, S, D], of every row; S a multiple of the ratio."""
    prefix = "attn.compressor"
    raw = matmul(x, weights[f"{prefix}.wkv.weight"])
    if ratio > 1:
        gates = matmul(x, weights[f"{prefix}.wgate.weight"]).float()
        shape = (len(x), -1, ratio, raw.shape[-1])
        raw = (raw.float().view(shape) * gates.view(shape).softmax(2)).sum(2).to(raw.dtype)
    latent = rms_norm(raw.float(), weights[f"{prefix}.norm.weight"], eps)
    keys = matmul(latent.detach().to(raw.dtype), weights["attn.indexer.wk.weight"])
    keys = rms_norm(keys.float(), weights["attn.indexer.k_norm.weight"], eps)
    positions = torch.arange(latent.shape[1]) * ratio
    return Entries(ratio, rope.turn(latent, positions), rope.turn(keys, positions))


def visible(positions: torch.Tensor, entries: Entries) -> torch.Tensor:
    """bool [B, S, E]; positions: int64 [B, S]."""
    numbers = torch.arange(entries.values.shape[1])
    return numbers < ((positions + 1) // entries.ratio)[..., None]


class Index:
    """One index source's scores for rows of its layer, [B, S, D]."""

    def __init__(
        self,
        x: torch.Tensor,
        q_latent: torch.Tensor,
        positions: torch.Tensor,
        weights: Weights,
        config: IndexConfig,
        rope: Rope,
    ) -> None:
        shape = (*x.shape[:2], config.num_heads, config.head_dim)
        queries = matmul(q_latent.detach(), weights["attn.indexer.wq_b.weight"]).float()
        self._queries = rope.turn(queries.view(shape), positions)
        shares = matmul(x.detach(), weights["attn.indexer.weights_proj.weight"]).float()
        self._shares = shares * config.num_heads**-0.5
        self._positions, self._config = positions, config

    def scores(self, entries: Entries, rows: torch.Tensor | slice) -> torch.Tensor:
        """fp32 [B, R, E], -inf where not visible; rows: int64 [B, R] or a slice."""
        queries, shares = _of(self._queries, rows), _of(self._shares, rows)
        products = torch.einsum("brhd,bed->brhe", queries, entries.keys).relu()
        scores = torch.einsum("brhe,brh->bre", products, shares) * queries.shape[-1] ** -0.5
        is_seen = visible(_of(self._positions, rows), entries)
        found: torch.Tensor = scores.masked_fill(~is_seen, float("-inf"))
        return found

    @torch.no_grad()
    def choose(
        self, entries: Entries, blocks: list[torch.Tensor] | None, *, makes_blocks: bool
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """(additive mask [B, S, E], candidate blocks of every part of the rows)."""
        batch, length = self._positions.shape
        mask = torch.full((batch, length, entries.values.shape[1]), HIDDEN)
        made = []
        for number, at in enumerate(range(0, length, _SCORED_ROWS)):
            rows = slice(at, at + _SCORED_ROWS)
            scores = self.scores(entries, rows).flatten(0, 1)
            if makes_blocks:
                made.append(best_blocks(scores, self._config))
            if blocks is not None:
                scores = within_blocks(scores, blocks[number], self._config.block_entries)
            chosen = best_entries(scores, self._config.top_k)
            mask[:, rows] = _mask_of(chosen, scores.shape[1]).view(batch, -1, scores.shape[1])
        return mask, made


def _mask_of(chosen: torch.Tensor, num_entries: int) -> torch.Tensor:
    mask = torch.full((len(chosen), num_entries + 1), HIDDEN)
    mask.scatter_(1, torch.where(chosen < 0, num_entries, chosen), 0.0)
    return mask[:, :num_entries]


def _of(values: torch.Tensor, rows: torch.Tensor | slice) -> torch.Tensor:
    if isinstance(rows, slice):
        return values[:, rows]
    return values[torch.arange(len(values))[:, None], rows]


def entry_shares(
    query: torch.Tensor,
    log_total: torch.Tensor,
    entries: Entries,
    positions: torch.Tensor,
    rows: torch.Tensor,
) -> torch.Tensor:
    """What rows attend to in every entry, summed over heads, [B, R, E]; no gradient.

    query: [B, S, H, d]; log_total: [B, S, H]; rows: int64 [B, R].
    """
    with torch.no_grad():
        chosen = _of(query, rows)
        scores = torch.einsum("brhd,bed->brhe", chosen, entries.values) * query.shape[-1] ** -0.5
        scores = scores - _of(log_total, rows)[..., None]
        is_seen = visible(_of(positions, rows), entries)
        found: torch.Tensor = scores.exp().sum(2) * is_seen
        return found


def index_loss(scores: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """How far the index is from where attention goes: cross entropy less entropy, over rows.

    scores, shares: [B, R, E]. Rows that attend to no entry count nothing.
    """
    mass = shares.sum(-1, keepdim=True)
    target = shares / mass.clamp_min(1e-6)
    logs = functional.log_softmax(scores.clamp_min(HIDDEN), dim=-1)
    found = (target * (target.clamp_min(1e-9).log() - logs)).sum(-1)
    weights = mass[..., 0].clamp_max(1.0) * (scores > float("-inf")).any(-1)
    return (found * weights).sum() / weights.sum().clamp_min(1.0)
