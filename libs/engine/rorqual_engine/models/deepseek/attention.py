"""Attention of a layer: a window, chosen entries and a sink in one softmax.

One KV head whose vectors are keys and values at once; so the output carries the keys' rotation,
and is turned back by the row's own position.
"""

from __future__ import annotations

import torch

from rorqual_engine.kernels.deepseek_attention_ops import (
    PagedRows,
    attend,
    prepare,
    supports_attention,
)
from rorqual_engine.kernels.deepseek_grouped_ops import grouped_product, supports_grouped
from rorqual_engine.kv import PAGE_TOKENS
from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.compress import Compressor
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.device_steps import attend_rows
from rorqual_engine.models.deepseek.indexer import Indexer, Selection, every_visible
from rorqual_engine.models.deepseek.norms import rms_norm
from rorqual_engine.models.deepseek.plan import LayerPlan
from rorqual_engine.models.deepseek.rope import RopeTable, rotate
from rorqual_engine.models.deepseek.state import KvViews
from rorqual_engine.models.deepseek.step import ChunkRows, Rows
from rorqual_engine.models.linear import Linear

_BLOCK_VALUES = 1 << 23
"""Gathered key values at once; more rows are cut."""


class Attention:
    """The sublayer of one layer."""

    def __init__(
        self, weights: DeepseekWeights, prefix: str, plan: LayerPlan, config: DeepseekConfig,
        rope: RopeTable,
    ) -> None:  # fmt: skip
        """prefix: such as layers.2.attn; rope: the layer's own."""
        self.plan, self._config, self._rope = plan, config, rope
        hidden, dim = config.hidden, config.head_dim
        weights.check_shape(f"{prefix}.wkv.weight", (dim, hidden))
        weights.check_shape(f"{prefix}.wq_b.weight", (config.num_heads * dim, config.q_rank))
        self._first = weights.linear(f"{prefix}.wq_a.weight", f"{prefix}.wkv.weight")
        self._q_norm = weights.vector(f"{prefix}.q_norm.weight", (config.q_rank,))
        self._kv_norm = weights.vector(f"{prefix}.kv_norm.weight", (dim,))
        self._wq_b = weights.linear(f"{prefix}.wq_b.weight")
        self._out_a = _groups(weights, f"{prefix}.wo_a.weight", config)
        self._out_b = weights.linear(f"{prefix}.wo_b.weight")
        self._sinks = weights.vector(f"{prefix}.attn_sink", (config.num_heads,))
        self._is_compiled = (
            supports_attention(dim, config.q_rank, config.num_heads)
            and weights.device.type == "cpu"
            and weights.dtype == torch.bfloat16
            and weights.kernels is None
        )
        self._kernels = weights.kernels
        self._matrices_a: torch.Tensor | None = None
        group_width = config.num_heads * dim // config.out_groups
        if self._is_compiled and supports_grouped(group_width, config.out_rank):
            matrix = weights.get(f"{prefix}.wo_a.weight")
            parts = matrix.view(config.out_groups, config.out_rank, group_width)
            self._matrices_a = parts.transpose(1, 2).contiguous()
        self.compress = (
            Compressor(weights, prefix, plan, config, rope) if plan.owns_entries else None
        )
        self._indexer = (
            Indexer(weights, f"{prefix}.indexer", plan, config, rope) if plan.selects else None
        )

    def __call__(
        self, x: torch.Tensor, rows: Rows, views: KvViews, selections: dict[int, Selection]
    ) -> torch.Tensor:
        """x: [T, D], after the norm; the rows' entries are in the pages already. Returns [T, D].

        selections: by index source, of the same rows; this layer's own is added.
        """
        config = self._config
        if self._is_compiled:
            return self._run_compiled(x, rows, views, selections)
        q_latent, kv = torch.split(self._first(x), [config.q_rank, config.head_dim], dim=-1)
        q_latent = rms_norm(q_latent, self._q_norm, config.eps)
        query = self._wq_b(q_latent).view(len(x), config.num_heads, config.head_dim)
        if config.q_head_norm:
            query = rms_norm(query, None, config.eps)
        cos, sin = self._rope.at(rows.positions, rows.tables.highest_end)
        kv = rotate(rms_norm(kv, self._kv_norm, config.eps), cos, sin)
        selection = self._select(x, q_latent, rows, views, selections)
        query = rotate(query, cos, sin)
        if self._kernels is None:
            output = self._attend(query, kv, rows, views, selection)
            output = rotate(output, cos, sin, back=True)
        else:
            ring, kv_source = views.window[self.plan.index], self.plan.kv_source
            entries = None if kv_source is None else views.entries[kv_source]
            state = ring, entries, selection, self._sinks, (cos, sin), rows
            output = attend_rows(self._kernels, query, kv, *state, window=config.window)
        parts = output.flatten(1).chunk(config.out_groups, dim=-1)
        grouped = [linear(part) for linear, part in zip(self._out_a, parts, strict=True)]
        return self._out_b(torch.cat(grouped, dim=-1))

    def _run_compiled(
        self, x: torch.Tensor, rows: Rows, views: KvViews, selections: dict[int, Selection]
    ) -> torch.Tensor:
        config, plan, tables = self._config, self.plan, rows.tables
        turn = self._rope.turn(tables.highest_end)
        norms = self._q_norm, self._kv_norm
        q_latent, kv = prepare(self._first(x), tables, turn, *norms, config.eps)
        selection = None
        if plan.index_source is not None:
            selection = self._select(x, q_latent, rows, views, selections)
            assert selection is not None
            selection = selection.to(torch.int32)
        entries = None
        if plan.kv_source is not None:
            entries = PagedRows(views.entries[plan.kv_source], plan.ratio)
        output = attend(
            self._wq_b(q_latent),
            kv,
            tables,
            turn,
            PagedRows(views.window[plan.index]),
            entries,
            selection,
            self._sinks,
            window=config.window,
            groups=config.out_groups,
            q_norm_eps=config.eps if config.q_head_norm else None,
        )
        if self._matrices_a is not None:
            return self._out_b(grouped_product(output, self._matrices_a))
        grouped = [linear(part) for linear, part in zip(self._out_a, output, strict=True)]
        return self._out_b(torch.cat(grouped, dim=-1))

    def _select(
        self, x: torch.Tensor, q_latent: torch.Tensor, rows: Rows, views: KvViews,
        selections: dict[int, Selection],
    ) -> torch.Tensor | None:  # fmt: skip
        plan = self.plan
        if plan.kind == "window":
            return None
        if plan.index_source is None:
            return every_visible(rows, plan.ratio).entries
        if self._indexer is not None:
            has_bounds = plan.candidate_source not in (None, plan.index)
            bounds = selections[plan.candidate_source or 0].blocks if has_bounds else None
            selections[plan.index] = self._indexer(x, q_latent, rows, views, bounds)
        return selections[plan.index_source].entries

    def _attend(
        self, query: torch.Tensor, kv: torch.Tensor, rows: Rows, views: KvViews,
        selection: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """Also writes kv to the windows. query: [T, H, d]; kv: [T, d]; selection: [T, k]."""
        outputs = []
        for chunk in rows.chunks:
            ring = views.window[self.plan.index][chunk.slot]
            keys, first = _window_keys(kv[chunk.rows], ring, chunk, self._config.window)
            chosen = None if selection is None else selection[chunk.rows]
            num_keys = self._config.window + (0 if chosen is None else chosen.shape[1])
            step = max(1, _BLOCK_VALUES // (num_keys * keys.shape[1]))
            for at in range(0, chunk.count, step):
                part = slice(at, at + step)
                block = query[chunk.rows][part], rows.positions[chunk.rows][part]
                entries = None if chosen is None else chosen[part]
                outputs.append(self._attend_block(*block, keys, first, chunk, views, entries))
            kept = min(chunk.count, len(ring))
            positions = rows.positions[chunk.rows][-kept:]
            ring[positions % len(ring)] = kv[chunk.rows][-kept:]
        return torch.cat(outputs)

    def _attend_block(
        self, query: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, first: int,
        chunk: ChunkRows, views: KvViews, chosen: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        window = self._config.window
        places = positions[:, None] - torch.arange(window - 1, -1, -1, device=keys.device)
        is_seen = places >= max(chunk.floor, 0)
        gathered = keys[(places - first).clamp_min(0)]
        if chosen is not None and chosen.shape[1]:
            gathered = torch.cat([gathered, self._entries(chosen, chunk, views)], dim=1)
            is_seen = torch.cat([is_seen, chosen >= 0], dim=1)
        return attend_gathered(query, gathered, is_seen, self._sinks)

    def _entries(self, chosen: torch.Tensor, chunk: ChunkRows, views: KvViews) -> torch.Tensor:
        assert self.plan.kv_source is not None
        per_page = PAGE_TOKENS // self.plan.ratio
        numbers = chosen.clamp_min(0)
        return views.entries[self.plan.kv_source][
            chunk.pages[numbers // per_page], numbers % per_page
        ]


def attend_gathered(
    query: torch.Tensor, keys: torch.Tensor, is_seen: torch.Tensor, sinks: torch.Tensor
) -> torch.Tensor:
    """Each row over keys of its own, softmax in fp32 with a sink that contributes no value.

    query: [n, H, d]; keys: [n, k, d]; is_seen: bool [n, k]; sinks: fp32 [H]. Returns as query.
    """
    wide = keys.float()
    wide[~is_seen] = 0  # may be anything, a NaN as well
    scores = torch.einsum("nhd,nkd->nhk", query.float(), wide) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~is_seen[:, None, :], float("-inf"))
    sink = sinks[None, :, None].expand(len(query), -1, 1)
    weights = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
    return torch.einsum("nhk,nkd->nhd", weights, wide).to(query.dtype)


def _window_keys(
    kv: torch.Tensor, ring: torch.Tensor, chunk: ChunkRows, window: int
) -> tuple[torch.Tensor, int]:
    """(keys of consecutive positions up to the chunk's end, position of the first)."""
    first = max(chunk.start - window + 1, chunk.floor, 0)
    old = torch.arange(first, chunk.start, device=kv.device)
    return torch.cat([ring[old % len(ring)], kv]), min(first, chunk.start)


def _groups(weights: DeepseekWeights, name: str, config: DeepseekConfig) -> list[Linear]:
    """One product a group of heads."""
    groups, rank = config.out_groups, config.out_rank
    shape = (groups * rank, config.num_heads * config.head_dim // groups)
    matrix = weights.get(name, shape)
    return [Linear(part.contiguous()) for part in torch.split(matrix, rank)]
