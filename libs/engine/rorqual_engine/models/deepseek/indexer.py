"""Which compressed entries a row attends to: the best by score, ties to the lowest number."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rorqual_engine.kernels.deepseek_attention_ops import PagedRows
from rorqual_engine.kernels.deepseek_select_ops import Choice, select, supports_select
from rorqual_engine.kv import PAGE_TOKENS
from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig, IndexConfig
from rorqual_engine.models.deepseek.device_steps import select_rows
from rorqual_engine.models.deepseek.plan import LayerPlan
from rorqual_engine.models.deepseek.quantize import round_index
from rorqual_engine.models.deepseek.rope import RopeTable, rotate
from rorqual_engine.models.deepseek.state import KvViews
from rorqual_engine.models.deepseek.step import ChunkRows, Rows


@dataclass(frozen=True)
class Selection:
    """Entries of every row; what later layers of the pass go on with."""

    entries: torch.Tensor
    """int32 or int64 [T, k], ascending; -1 at the end = fewer"""
    blocks: torch.Tensor | None = None
    """int32 or int64 [T, b], candidate blocks of a candidate source; -1 = fewer"""


def every_visible(rows: Rows, ratio: int) -> Selection:
    """No choice: all entries that are complete at the row."""
    visible = (rows.positions + 1) // ratio
    num_entries = rows.tables.highest_end // ratio
    numbers = torch.arange(num_entries, device=visible.device)[None, :]
    return Selection(torch.where(numbers < visible[:, None], numbers, -1))


class Indexer:
    """An index source's queries against the keys of its ratio's owner."""

    def __init__(
        self, weights: DeepseekWeights, prefix: str, plan: LayerPlan, config: DeepseekConfig,
        rope: RopeTable,
    ) -> None:  # fmt: skip
        """prefix: such as layers.2.attn.indexer"""
        self._plan, self._config, self._rope = plan, config.index, rope
        self._is_quantized = config.kv_quantized
        self._wq_b = weights.linear(f"{prefix}.wq_b.weight")
        self._weights = weights.linear(f"{prefix}.weights_proj.weight")
        self._is_compiled = (
            supports_select(config.index.head_dim, plan.ratio)
            and weights.device.type == "cpu"
            and weights.dtype == torch.bfloat16
            and weights.kernels is None
        )
        self._kernels = weights.kernels

    def __call__(
        self, x: torch.Tensor, q_latent: torch.Tensor, rows: Rows, views: KvViews,
        candidates: torch.Tensor | None,
    ) -> Selection:  # fmt: skip
        """x: [T, D]; q_latent: [T, q_rank]; candidates: blocks of the candidate source."""
        shape = (len(x), self._config.num_heads, self._config.head_dim)
        queries = self._wq_b(q_latent).view(shape)
        weights = self._weights(x).float() * self._config.num_heads**-0.5
        assert self._plan.kv_source is not None
        keys = views.keys[self._plan.kv_source]
        makes_blocks = self._plan.candidate_source == self._plan.index
        if self._is_compiled:
            return self._run_compiled(queries, weights, rows, keys, candidates)
        queries = self._turned(queries, rows)
        if self._kernels is not None:
            found = select_rows(
                self._kernels, queries, weights, keys, rows, self._config,
                ratio=self._plan.ratio, makes_blocks=makes_blocks, candidates=candidates,
            )  # fmt: skip
            return Selection(*found)
        parts = []
        for chunk in rows.chunks:
            scores = self._scores(
                queries[chunk.rows], weights[chunk.rows], rows.positions[chunk.rows], chunk, keys
            )
            blocks = best_blocks(scores, self._config) if makes_blocks else None
            if candidates is not None:
                scores = within_blocks(scores, candidates[chunk.rows], self._config.block_entries)
            parts.append(Selection(best_entries(scores, self._config.top_k), blocks))
        return _joined(parts)

    def _turned(self, queries: torch.Tensor, rows: Rows) -> torch.Tensor:
        angles = self._rope.at(rows.positions, rows.tables.highest_end)
        turned = rotate(queries, *angles)
        return round_index(turned) if self._is_quantized else turned

    def _run_compiled(
        self, queries: torch.Tensor, weights: torch.Tensor, rows: Rows, keys: torch.Tensor,
        candidates: torch.Tensor | None,
    ) -> Selection:  # fmt: skip
        turn = None if self._is_quantized else self._rope.turn(rows.tables.highest_end)
        if turn is None:
            queries = self._turned(queries, rows)
        makes_blocks = self._plan.candidate_source == self._plan.index
        config = self._config
        choice = Choice(
            config.top_k, config.num_blocks if makes_blocks else 0, config.block_entries
        )
        pages = PagedRows(keys, self._plan.ratio)
        return Selection(*select(queries, weights, pages, rows.tables, turn, choice, candidates))

    def _scores(
        self, queries: torch.Tensor, weights: torch.Tensor, positions: torch.Tensor,
        chunk: ChunkRows, keys: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """fp32 [n, entries of the sequence], -inf where not visible."""
        ratio = self._plan.ratio
        num_entries = chunk.end // ratio
        num_pages = -(-num_entries * ratio // PAGE_TOKENS)
        wide = keys[chunk.pages[:num_pages]].flatten(0, 1)[:num_entries].float()
        products = torch.einsum("nhd,ed->nhe", queries.float(), wide).relu()
        scores: torch.Tensor = torch.einsum("nhe,nh->ne", products, weights)
        scores = scores * self._config.head_dim**-0.5
        visible = (positions + 1) // ratio
        numbers = torch.arange(num_entries, device=positions.device)
        return scores.masked_fill(numbers[None, :] >= visible[:, None], float("-inf"))


def best_entries(scores: torch.Tensor, top_k: int) -> torch.Tensor:
    """Numbers of the top_k best of each row, ascending; [n, entries] -> [n, <= top_k]."""
    order = scores.sort(dim=-1, descending=True, stable=True)
    chosen, is_real = order.indices[:, :top_k], order.values[:, :top_k] > float("-inf")
    past_end = scores.shape[1]
    ascending = torch.where(is_real, chosen, past_end).sort(-1).values
    return torch.where(ascending < past_end, ascending, -1)


def best_blocks(scores: torch.Tensor, config: IndexConfig) -> torch.Tensor:
    """Blocks by their best entry; a row's newest block is always among them."""
    size = config.block_entries
    padding = -scores.shape[1] % size
    padded = torch.nn.functional.pad(scores, (0, padding), value=float("-inf"))
    peaks = padded.view(len(scores), -1, size).amax(-1)
    numbers = torch.arange(peaks.shape[1], device=scores.device)
    newest = torch.where(peaks > float("-inf"), numbers, -1).amax(-1, keepdim=True)
    peaks = peaks.masked_fill(numbers[None, :] == newest, float("inf"))
    return best_entries(peaks, config.num_blocks)


def within_blocks(scores: torch.Tensor, blocks: torch.Tensor, size: int) -> torch.Tensor:
    """Scores outside the row's blocks become -inf."""
    num_blocks = -(-scores.shape[1] // size)
    is_kept = torch.zeros((len(scores), num_blocks + 1), dtype=torch.bool, device=scores.device)
    is_kept.scatter_(1, torch.where(blocks < 0, num_blocks, blocks), True)
    per_entry = is_kept[:, :num_blocks].repeat_interleave(size, dim=1)[:, : scores.shape[1]]
    return scores.masked_fill(~per_entry, float("-inf"))


def _joined(parts: list[Selection]) -> Selection:
    entries = _stack([part.entries for part in parts])
    blocks = [part.blocks for part in parts if part.blocks is not None]
    return Selection(entries, _stack(blocks) if blocks else None)


def _stack(parts: list[torch.Tensor]) -> torch.Tensor:
    """On top of each other, filled up with -1 to one width."""
    width = max(part.shape[1] for part in parts)
    pad = torch.nn.functional.pad
    return torch.cat([pad(part, (0, width - part.shape[1]), value=-1) for part in parts])
