"""The layer steps in plain torch: reference of kernels/, and what runs on cuda or in fp32."""

from __future__ import annotations

import torch
from torch.nn import functional

from rorqual_engine.batch import Batch
from rorqual_engine.kv import PAGE_TOKENS, PagedKvCache
from rorqual_engine.ops import AttentionShape
from rorqual_engine.rope import RopeTable


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Statistic in fp32, rounded to the model's dtype, then times the weight."""
    wide = hidden.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * scaled.to(hidden.dtype)


def rotate(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE on halves; rows [T, heads, head_dim], cos and sin [T, head_dim / 2] in rows' dtype."""
    first, second = rows.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos + -second * sin, second * cos + first * sin), dim=-1)


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, each rounded to the dtype of gate_up."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


class PageViews:
    """One layer's keys and values inside the pages, as tensors that share their memory.

    keys:   [pages, kv_heads, head_dim, PAGE_TOKENS], so that a dimension's keys lie together
    values: [pages, kv_heads, PAGE_TOKENS, head_dim]
    """

    def __init__(
        self, cache: PagedKvCache, layer: int, shape: AttentionShape, dtype: torch.dtype
    ) -> None:
        half = shape.kv_dim * PAGE_TOKENS
        typed = cache.pages.view(dtype)
        first = layer * 2 * half
        num_pages, heads, dim = cache.num_pages, shape.num_kv_heads, shape.head_dim
        self.keys = typed[:, first : first + half].view(num_pages, heads, dim, PAGE_TOKENS)
        self.values = typed[:, first + half : first + 2 * half].view(
            num_pages, heads, PAGE_TOKENS, dim
        )


def attend_chunk(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int
) -> torch.Tensor:
    """Causal attention of one chunk, softmax in fp32.

    query: [n, heads, head_dim]; keys, values: [context, kv_heads, head_dim], context = start + n.
    Returns [n, heads * head_dim] in query's dtype.
    """
    num_rows, heads, dim = query.shape
    group = heads // keys.shape[1]
    wide_keys = keys.float().repeat_interleave(group, dim=1)
    wide_values = values.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("nhd,chd->hnc", query.float(), wide_keys) * dim**-0.5
    position = torch.arange(len(keys), device=query.device)
    visible = position[None, :] <= start + torch.arange(num_rows, device=query.device)[:, None]
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hnc,chd->nhd", weights, wide_values).to(query.dtype).flatten(1)


class TorchOps:
    """LayerOps in plain torch."""

    def __init__(self, shape: AttentionShape, rope: RopeTable, eps: float) -> None:
        self.shape, self.rope, self.eps = shape, rope, eps

    def begin(self, batch: Batch, cache: PagedKvCache) -> TorchStep:
        return TorchStep(self, batch, cache)


class TorchStep:
    """StepOps in plain torch."""

    def __init__(self, ops: TorchOps, batch: Batch, cache: PagedKvCache) -> None:
        self._ops, self._batch, self._cache = ops, batch, cache
        positions = torch.from_numpy(batch.positions).to(cache.device)
        self._cos, self._sin = ops.rope.cos[positions], ops.rope.sin[positions]

    def add_norm(
        self, hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> torch.Tensor:
        if delta is not None:
            hidden += delta
        return rms_norm(hidden, weight, self._ops.eps)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        return gated(gate_up)

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        shape = self._ops.shape
        query = qkv[:, : shape.q_dim].view(len(qkv), -1, shape.head_dim)
        query = rotate(query, self._cos, self._sin)
        views = self._written(layer, qkv)
        outputs = [self._attend_one(views, query, chunk) for chunk in range(self._batch.num_chunks)]
        return torch.cat(outputs)

    def write(self, layer: int, qkv: torch.Tensor) -> None:
        self._written(layer, qkv)

    def _written(self, layer: int, qkv: torch.Tensor) -> PageViews:
        shape = self._ops.shape
        parts = torch.split(qkv, [shape.q_dim, shape.kv_dim, shape.kv_dim], dim=-1)
        key, value = (part.view(len(part), -1, shape.head_dim) for part in parts[1:])
        views = PageViews(self._cache, layer, shape, qkv.dtype)
        self._write(views, rotate(key, self._cos, self._sin), value)
        return views

    def _chunk_pages(self, chunk: int) -> torch.Tensor:
        first, last = self._batch.page_starts[chunk : chunk + 2]
        return torch.from_numpy(self._batch.pages[first:last]).long().to(self._cache.device)

    def _write(self, views: PageViews, key: torch.Tensor, value: torch.Tensor) -> None:
        batch = self._batch
        for chunk in range(batch.num_chunks):
            first, last = (int(row) for row in batch.row_starts[chunk : chunk + 2])
            positions = torch.from_numpy(batch.positions[first:last]).to(self._cache.device)
            pages, slots = self._chunk_pages(chunk)[positions // PAGE_TOKENS], positions
            slots = positions % PAGE_TOKENS
            views.keys[pages, :, :, slots] = key[first:last]
            views.values[pages, :, slots] = value[first:last]

    def _attend_one(self, views: PageViews, query: torch.Tensor, chunk: int) -> torch.Tensor:
        batch = self._batch
        first, last = (int(row) for row in batch.row_starts[chunk : chunk + 2])
        start = int(batch.starts[chunk])
        context = start + last - first
        pages = self._chunk_pages(chunk)
        keys = views.keys[pages].permute(0, 3, 1, 2).flatten(0, 1)[:context]
        values = views.values[pages].transpose(1, 2).flatten(0, 1)[:context]
        return attend_chunk(query[first:last], keys, values, start)
