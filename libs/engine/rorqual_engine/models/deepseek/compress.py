"""Several tokens become one entry: pooled, normed, rotated, written to its page.

Windows close on absolute positions. What a chunk leaves open waits, as raw rows, in a ring of the
slot; the rows a later window needs are there whatever the chunking was.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from rorqual_engine.models.deepseek.step import ChunkRows, Rows


@dataclass(frozen=True)
class Pooled:
    """Entries of one chunk, before norm: pooled fp32 [n, dim], their numbers [n]."""

    values: torch.Tensor
    numbers: torch.Tensor


class Pooling:
    """Raw kv and gates of tokens -> one vector per window, fp32, softmax per channel."""

    def __init__(self, plan: LayerPlan, dim: int, bias: torch.Tensor | None) -> None:
        """dim: of an entry; bias: fp32 [ratio, width of kv], added to gates by slot."""
        self.ratio, self.dim, self.bias = plan.ratio, dim, bias
        self.overlaps = plan.kind == "csa"
        self.width = 2 * dim if self.overlaps else dim

    def pool(
        self, raw: torch.Tensor, positions: torch.Tensor, chunk: ChunkRows, ring: torch.Tensor
    ) -> Pooled:
        """raw: fp32 [count, 2 * width], kv then gates, of the chunk; ring: [ring, 2 * width]."""
        if self.bias is not None:
            raw = raw.clone()
            raw[:, self.width :] += self.bias[positions % self.ratio]
        first, last = chunk.start // self.ratio, chunk.end // self.ratio
        values = self._pool(raw, chunk, ring, first, last)
        kept = min(chunk.count, len(ring))
        ring[positions[-kept:] % len(ring)] = raw[-kept:]
        return Pooled(values, torch.arange(first, last, device=raw.device))

    def _pool(
        self, raw: torch.Tensor, chunk: ChunkRows, ring: torch.Tensor, first: int, last: int
    ) -> torch.Tensor:
        if first == last:
            return raw.new_empty((0, self.dim))
        begin = (first - self.overlaps) * self.ratio
        old = torch.arange(begin, chunk.start, device=raw.device)
        rows = torch.cat([ring[old % len(ring)], raw])[: last * self.ratio - begin]
        slots = rows.view(-1, self.ratio, 2, self.width)
        kv, gates = slots[:, :, 0], slots[:, :, 1]
        if self.overlaps:
            kv, gates = self._overlapped(kv), self._overlapped(gates)
            if first == 0:
                kv[0, : self.ratio], gates[0, : self.ratio] = 0, float("-inf")
        return (kv * gates.softmax(1)).sum(1)

    def _overlapped(self, values: torch.Tensor) -> torch.Tensor:
        """[m, ratio, 2 * dim] -> [m - 1, 2 * ratio, dim]: the first halves of the window before,
        then the second halves of the window itself."""
        before, here = values[:-1, :, : self.dim], values[1:, :, self.dim :]
        return torch.cat([before, here], dim=1)


class Compressor:
    """Entries of an owner layer and the keys to choose among them."""

    def __init__(
        self, weights: DeepseekWeights, prefix: str, plan: LayerPlan, config: DeepseekConfig,
        rope: RopeTable,
    ) -> None:  # fmt: skip
        """prefix: such as layers.2.attn"""
        self._plan, self._rope, self._eps = plan, rope, config.eps
        self._is_quantized = config.kv_quantized
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
        if self._plan.ratio == 1:
            self._write_unpooled(projected, rows, views)
            return
        raws = torch.split(projected.float(), [2 * p.width for p in self._poolings], dim=-1)
        for chunk in rows.chunks:
            parts = [raw[chunk.rows] for raw in raws]
            self._compress(parts, rows.positions[chunk.rows], chunk, views, x.dtype)

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
            per_page = PAGE_TOKENS // plan.ratio
            places = tables.page_starts[entries.chunk] + entries.numbers // per_page
            pages = torch.from_numpy(tables.pages[places]).long()
            self._store(latent, keys, torch.from_numpy(entries.numbers), pages, views)
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

    def _write_unpooled(self, projected: torch.Tensor, rows: Rows, views: KvViews) -> None:
        for chunk in rows.chunks:
            latent = rms_norm(projected[chunk.rows], self._norms[0], self._eps)
            self._finish(latent, rows.positions[chunk.rows], chunk, views, None)

    def _compress(
        self, raws: list[torch.Tensor], positions: torch.Tensor, chunk: ChunkRows, views: KvViews,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        layer = self._plan.index
        rings = [views.raw[layer][chunk.slot]]
        if len(raws) > 1:
            rings.append(views.index_raw[layer][chunk.slot])
        pooled = [
            pooling.pool(raw, positions, chunk, ring)
            for pooling, raw, ring in zip(self._poolings, raws, rings, strict=True)
        ]
        normed = [
            rms_norm(p.values.to(dtype), norm, self._eps)
            for p, norm in zip(pooled, self._norms, strict=True)
        ]
        keys = normed[1] if len(normed) > 1 else None
        self._finish(normed[0], pooled[0].numbers, chunk, views, keys)

    def _finish(
        self, latent: torch.Tensor, numbers: torch.Tensor, chunk: ChunkRows, views: KvViews,
        keys: torch.Tensor | None,
    ) -> None:  # fmt: skip
        """Writes what is not stored yet."""
        plan = self._plan
        is_new = (numbers + 1) * plan.ratio > chunk.num_stored
        latent, numbers = latent[is_new], numbers[is_new]
        if not len(numbers):
            return
        keys = None if keys is None else keys[is_new]
        if self._wk is not None:
            keys = rms_norm(self._wk(latent), self._k_norm, self._eps)
        self._store(latent, keys, numbers, chunk.pages[numbers * plan.ratio // PAGE_TOKENS], views)

    def _store(
        self, latent: torch.Tensor, keys: torch.Tensor | None, numbers: torch.Tensor,
        pages: torch.Tensor, views: KvViews,
    ) -> None:  # fmt: skip
        """Rotates entries and keys and writes them, each to its page."""
        plan = self._plan
        cos, sin = self._rope.at(numbers * plan.ratio)
        place = pages, numbers % (PAGE_TOKENS // plan.ratio)
        entries = rotate(latent, cos, sin)
        views.entries[plan.index][place] = round_entries(entries) if self._is_quantized else entries
        if keys is not None:
            keys = rotate(keys, cos, sin)
            views.keys[plan.index][place] = round_index(keys) if self._is_quantized else keys


def _bias(weights: DeepseekWeights, source: str, plan: LayerPlan) -> torch.Tensor | None:
    return None if plan.kind == "latent" else weights.vector(f"{source}.ape")
