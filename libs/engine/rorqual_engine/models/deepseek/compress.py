"""Several tokens become one entry: pooled, normed, rotated, written to its page.

Windows close on absolute positions. What a chunk leaves open waits, as raw rows, in a ring of the
slot; the rows a later window needs are there whatever the chunking was.
"""

from __future__ import annotations

import torch

from rorqual_engine.kernels.deepseek_attention_ops import PagedRows
from rorqual_engine.kernels.deepseek_compress_ops import (
    EntryTables,
    PoolWeights,
    RawRing,
    pool,
    supports_compression,
    write_entries,
)
from rorqual_engine.kernels.deepseek_stream_ops import norm_rows
from rorqual_engine.kv import PAGE_TOKENS
from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.norms import rms_norm
from rorqual_engine.models.deepseek.plan import LayerPlan
from rorqual_engine.models.deepseek.quantize import round_entries, round_index
from rorqual_engine.models.deepseek.rope import RopeTable, rotate
from rorqual_engine.models.deepseek.state import KvViews
from rorqual_engine.models.deepseek.step import Rows, remember


class Pooling:
    """Raw kv and gates of tokens -> one vector per window, fp32, softmax per channel."""

    def __init__(self, plan: LayerPlan, dim: int, bias: torch.Tensor | None) -> None:
        """dim: of an entry; bias: fp32 [ratio, width of kv], added to gates by slot."""
        self.ratio, self.dim, self.bias = plan.ratio, dim, bias
        self.overlaps = plan.kind == "csa"
        self.width = 2 * dim if self.overlaps else dim

    def pool(self, raw: torch.Tensor, rows: Rows, rings: torch.Tensor) -> torch.Tensor:
        """Vectors fp32 [N, dim] of the entries that the rows complete; then raw goes to the rings.

        raw: fp32 [T, 2 * width], kv then gates, which the bias is added to in place; rings:
        [slots, ring, 2 * width].
        """
        if self.bias is not None:
            raw[:, self.width :] += self.bias[rows.positions % self.ratio]
        at = rows.entry_places(self.ratio, 1 + self.overlaps)
        tokens = raw[at.rows]
        if len(at.old):
            old = rings[at.old_slots, at.old_positions % rings.shape[1]]
            tokens.view(-1, raw.shape[1])[at.old] = old
        kv, gates = torch.split(tokens, self.width, dim=-1)
        if self.overlaps:
            is_missing = (at.positions < 0)[:, :, None]
            kv = self._overlapped(kv).masked_fill_(is_missing, 0)
            gates = self._overlapped(gates).masked_fill_(is_missing, float("-inf"))
        remember(rings, rows, raw)
        pooled: torch.Tensor = (kv * gates.softmax(1)).sum(1)
        return pooled

    def _overlapped(self, values: torch.Tensor) -> torch.Tensor:
        """[N, 2 * ratio, 2 * dim] -> [N, 2 * ratio, dim]: of the tokens before the entry's own the
        first half, of its own the second."""
        before, own = torch.split(values, self.ratio, dim=1)
        return torch.cat([before[..., : self.dim], own[..., self.dim :]], dim=1)


class Compressor:
    """Entries of an owner layer and the keys to choose among them."""

    def __init__(
        self, weights: DeepseekWeights, prefix: str, plan: LayerPlan, config: DeepseekConfig,
        rope: RopeTable,
    ) -> None:  # fmt: skip
        """prefix: such as layers.2.attn"""
        self._plan, self._rope, self._eps = plan, rope, config.eps
        self._is_quantized, self._kernels = config.kv_quantized, weights.kernels
        self._spans = 1 + (plan.kind == "csa")
        self._dims = (config.head_dim, config.index.head_dim)
        sources = [f"{prefix}.compressor"]
        if plan.kind == "csa":
            sources.append(f"{prefix}.indexer.compressor")
        parts = ("wkv", "wgate") if plan.ratio > 1 else ("wkv",)
        self._project = weights.linear(*(f"{s}.{p}.weight" for s in sources for p in parts))
        self._poolings = [
            Pooling(plan, dim, _bias(weights, source, plan))
            for source, dim in zip(sources, self._dims, strict=False)
        ]
        self._norms = [weights.vector(f"{source}.norm.weight") for source in sources]
        self._pool_weights = [
            PoolWeights(plan.ratio, p.overlaps, p.dim, p.bias, norm, config.eps)
            for p, norm in zip(self._poolings, self._norms, strict=True)
        ]
        self._is_compiled = (
            supports_compression(config.head_dim, config.index.head_dim)
            and weights.device.type == "cpu"
            and weights.dtype == torch.bfloat16
        )
        self._wk = None
        if plan.kind == "latent":
            self._wk = weights.linear(f"{prefix}.indexer.wk.weight")
            self._k_norm = weights.vector(f"{prefix}.indexer.k_norm.weight")

    def __call__(self, x: torch.Tensor, rows: Rows, views: KvViews) -> None:
        """Writes the entries and keys that the rows complete. x: [T, D], after the norm."""
        projected = self._project(x)
        if self._is_compiled:
            self._run_compiled(projected, rows, views)
            return
        latents = self._latents(projected, rows, views)
        if len(latents[0]):
            keys = latents[-1]
            if self._wk is not None:
                keys = rms_norm(self._wk(latents[0]), self._k_norm, self._eps)
            self._store(latents[0], keys, rows, views)

    def _latents(self, projected: torch.Tensor, rows: Rows, views: KvViews) -> list[torch.Tensor]:
        """Normed vectors of the entries that the rows complete, one for each pooling."""
        plan = self._plan
        if plan.ratio == 1:
            last_rows = rows.entry_places(1, 1).last_rows
            taken = projected if len(last_rows) == len(projected) else projected[last_rows]
            return [rms_norm(taken, self._norms[0], self._eps)]
        raws = torch.split(projected.float(), [2 * p.width for p in self._poolings], dim=-1)
        rings = [ring[plan.index] for ring in (views.raw, views.index_raw) if plan.index in ring]
        return [
            rms_norm(pooling.pool(raw, rows, ring).to(projected.dtype), norm, self._eps)
            for pooling, raw, ring, norm in zip(
                self._poolings, raws, rings, self._norms, strict=True
            )
        ]

    def _run_compiled(self, projected: torch.Tensor, rows: Rows, views: KvViews) -> None:
        plan, entries = self._plan, rows.entries(self._plan.ratio)
        if plan.ratio == 1:
            taken = projected
            if len(entries.numbers) < len(projected):
                taken = projected[torch.from_numpy(entries.last_rows)]
            latents = [norm_rows(taken, self._norms[0], self._eps)]
        else:
            rings = [
                ring[plan.index] for ring in (views.raw, views.index_raw) if plan.index in ring
            ]
            raws = torch.split(projected, [2 * p.width for p in self._poolings], dim=-1)
            latents = [
                pool(raw, entries, rows.tables, RawRing(ring), weights)
                for raw, ring, weights in zip(raws, rings, self._pool_weights, strict=True)
            ]
        if len(entries.numbers):
            keys = latents[-1] if self._wk is None else self._wk(latents[0])
            self._store_compiled(latents[0], keys, entries, rows, views)

    def _store_compiled(
        self, latent: torch.Tensor, keys: torch.Tensor, entries: EntryTables, rows: Rows,
        views: KvViews,
    ) -> None:  # fmt: skip
        plan, tables = self._plan, rows.tables
        if self._is_quantized:
            if self._wk is not None:
                keys = rms_norm(keys, self._k_norm, self._eps)
            self._store(latent, keys, rows, views)
            return
        key_view = views.keys.get(plan.index)
        write_entries(
            latent,
            None if key_view is None else keys,
            None if self._wk is None else self._k_norm,
            self._eps,
            entries,
            tables,
            self._rope.turn(tables.highest_end),
            PagedRows(views.entries[plan.index], plan.ratio),
            None if key_view is None else PagedRows(key_view, plan.ratio),
        )

    def _store(self, latent: torch.Tensor, keys: torch.Tensor, rows: Rows, views: KvViews) -> None:
        """Rotates entries and keys and writes them, each to its page."""
        plan = self._plan
        at = rows.entry_places(plan.ratio, self._spans)
        cos, sin = self._rope.at(at.numbers * plan.ratio, rows.tables.highest_end)
        entries = rotate(latent, cos, sin)
        entries = round_entries(entries) if self._is_quantized else entries
        place = at.pages, at.numbers % (PAGE_TOKENS // plan.ratio)
        if self._kernels is None:
            views.entries[plan.index][place] = entries
        else:
            scatter = self._kernels("scatter_entries")
            numbers = at.numbers.to(torch.int32)
            scatter(views.entries[plan.index], entries, numbers, at.sequences, rows.places)
        if plan.owns_index_keys:
            keys = rotate(keys, cos, sin)
            views.keys[plan.index][place] = round_index(keys) if self._is_quantized else keys


def _bias(weights: DeepseekWeights, source: str, plan: LayerPlan) -> torch.Tensor | None:
    return None if plan.kind == "latent" else weights.vector(f"{source}.ape")
