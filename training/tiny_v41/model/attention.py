"""Attention that learns: a window, compressed entries and a sink in one softmax, one KV head.

All heads share their keys, so a sequence's heads and rows are the rows of one product. Shares are
computed anew on the way back: what is kept of a softmax is its normaliser.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.autograd import Function

BLOCK = 64
"""Rows of a long sequence that go together, each with the keys of all their windows."""
HIDDEN = -1e30
"""Added to a score that does not count; finite, so that a row may have none that do."""
_LOG2E = math.log2(math.e)
"""Scores are counted in powers of two: exp2 is four times as fast as exp here, and as fast where it
underflows."""


def attend(
    query: torch.Tensor,
    kv: torch.Tensor,
    sinks: torch.Tensor,
    window: int,
    entries: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output as query, log of the normaliser [B, S, H]).

    query: fp32 [B, S, H, d]; kv: fp32 [B, S, d]. entries: fp32 [B, E, d]; mask: [B, S, E], 0 where
    a row sees an entry, else HIDDEN. dtype: of products; sums are fp32.
    """
    if entries is None or mask is None:
        entries, mask = kv[:, :0], kv.new_zeros((*kv.shape[:2], 0))
    output, log_total = _attention(query, kv, sinks, window, entries, mask, dtype)
    return output, log_total


@dataclass(frozen=True)
class _Part:
    """Rows [begin, end) of sequences, and the keys that they may see."""

    begin: int
    end: int
    first_key: int
    num_entries: int

    def keys(self, kv: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        """[B, K, d]"""
        return torch.cat([kv[:, self.first_key : self.end], entries[:, : self.num_entries]], dim=1)

    def scores(
        self, query: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor, window: int
    ) -> torch.Tensor:
        """fp32 [B, rows, H, K]; query: scaled, [B, S, H, d]."""
        near = _window_mask(self.end - self.begin, self.begin - self.first_key, window)
        near = near.expand(len(mask), -1, -1)
        masks = torch.cat([near, mask[:, self.begin : self.end, : self.num_entries]], dim=-1)
        rows = self.rows(query)
        products = torch.bmm(rows.flatten(1, 2), keys.mT)
        return products.view(*rows.shape[:3], -1) + masks[:, :, None]

    def rows(self, values: torch.Tensor) -> torch.Tensor:
        return values[:, self.begin : self.end]


def _parts(length: int, window: int, mask: torch.Tensor) -> Iterator[_Part]:
    """A short sequence is one part, a long one has many."""
    block = length if length <= window + BLOCK else BLOCK
    for begin in range(0, length, block):
        end = min(begin + block, length)
        num_entries = _num_seen(mask[:, begin:end]) if mask.shape[-1] else 0
        yield _Part(begin, end, max(0, begin - window), num_entries)


def _num_seen(mask: torch.Tensor) -> int:
    """Entries up to the last that any row sees."""
    seen = (mask.amax((0, 1)) > HIDDEN).nonzero()
    return int(seen[-1]) + 1 if len(seen) else 0


@lru_cache(maxsize=256)
def _window_mask(num_rows: int, back: int, window: int) -> torch.Tensor:
    """[rows, back + rows]; back: keys before the rows' own."""
    distance = torch.arange(num_rows)[:, None] + back - torch.arange(back + num_rows)
    is_near = (distance >= 0) & (distance < window)
    return torch.zeros(is_near.shape).masked_fill(~is_near, HIDDEN)


class _Attention(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        query: torch.Tensor,
        kv: torch.Tensor,
        sinks: torch.Tensor,
        window: int,
        entries: torch.Tensor,
        mask: torch.Tensor,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, log_total = torch.empty_like(query), query.new_empty(query.shape[:3])
        narrow = (query * (_LOG2E * query.shape[-1] ** -0.5)).to(dtype)
        sinks = sinks * _LOG2E
        kv, entries = kv.to(dtype), entries.to(dtype)
        parts = list(_parts(query.shape[1], window, mask))
        for part in parts:
            keys = part.keys(kv, entries)
            shares = part.scores(narrow, keys, mask, window)
            top = shares.amax(-1, keepdim=True)
            shares.sub_(top).exp2_()
            top = top[..., 0]
            total = shares.sum(-1) + (sinks - top).exp2()
            products = torch.bmm(shares.flatten(1, 2).to(dtype), keys)
            torch.div(products.view_as(part.rows(query)), total[..., None], out=part.rows(output))
            part.rows(log_total).copy_(total.log2_().add_(top))
        ctx.save_for_backward(narrow, kv, sinks, entries, mask, output, log_total)
        ctx.window, ctx.parts = window, parts
        log_total = log_total / _LOG2E
        ctx.mark_non_differentiable(log_total)
        return output, log_total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:  # type: ignore[override]
        narrow, kv, sinks, entries, mask, output, log_total = ctx.saved_tensors
        delta = (grad * output).sum(-1)
        grad_sinks = -((sinks - log_total).exp2() * delta).sum((0, 1))
        grad_query = torch.empty_like(output)
        grad_kv, grad_entries = torch.zeros(kv.shape), torch.zeros(entries.shape)
        given = grad.to(kv.dtype)
        for part in ctx.parts:
            keys = part.keys(kv, entries)
            shares = part.scores(narrow, keys, mask, ctx.window)
            shares.sub_(part.rows(log_total)[..., None]).exp2_()
            wanted = part.rows(given).flatten(1, 2)
            slopes = torch.bmm(wanted, keys.mT).view_as(shares) - part.rows(delta)[..., None]
            slopes = slopes.mul_(shares).flatten(1, 2).to(kv.dtype)
            part.rows(grad_query).copy_(torch.bmm(slopes, keys).view_as(part.rows(output)))
            found = torch.bmm(slopes.mT, part.rows(narrow).flatten(1, 2)).float() / _LOG2E
            found += torch.bmm(shares.flatten(1, 2).to(kv.dtype).mT, wanted)
            num_near = part.end - part.first_key
            grad_kv[:, part.first_key : part.end] += found[:, :num_near]
            grad_entries[:, : part.num_entries] += found[:, num_near:]
        grad_query *= output.shape[-1] ** -0.5
        return grad_query, grad_kv, grad_sinks, None, grad_entries, None, None


_attention: Any = _Attention.apply
