"""Attention that learns: a window, compressed entries and a sink in one softmax, one KV head.

Window and entries are two fused attentions. Both get the normaliser of the whole on their way back,
which makes their gradients those of the one softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.autograd import Function

BLOCK = 64
"""Sequences are padded to whole blocks; in long ones, a block's rows share the keys of a window."""
HIDDEN = -1e30
"""Added to a score that does not count; finite, so that a row may have none that do."""

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def attend(
    query: torch.Tensor,
    kv: torch.Tensor,
    sinks: torch.Tensor,
    window: int,
    entries: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output as query, log of the normaliser [B, H, S]).

    query: fp32 [B, S, H, d]; kv: [B, S, d]; S whole blocks. entries: [B, E, d]; mask: [B, S, E], 0
    where a row sees an entry, else HIDDEN.
    """
    output, log_total = _attention(query, kv, sinks, window, entries, mask)
    return output, log_total


@dataclass(frozen=True)
class _Cut:
    """How a sequence's rows are laid out: short ones as one block, long ones as many."""

    block: int
    """Rows that see the same keys"""
    back: int
    """Keys before a block's own"""

    @classmethod
    def of(cls, length: int, window: int) -> _Cut:
        return cls(length, 0) if length <= window + BLOCK else cls(BLOCK, window)

    def rows(self, rows: torch.Tensor) -> torch.Tensor:
        """[B, S, H, d] -> [B * blocks, H, block, d]"""
        return rows.reshape(-1, self.block, *rows.shape[2:]).transpose(1, 2)

    def keys(self, kv: torch.Tensor, heads: int) -> torch.Tensor:
        """[B * blocks, H, back + block, d]"""
        padded = torch.nn.functional.pad(kv, (0, 0, self.back, 0))
        keys = padded.unfold(1, self.back + self.block, self.block).transpose(-1, -2)
        return keys.reshape(-1, 1, *keys.shape[2:]).expand(-1, heads, -1, -1)

    def joined(self, grad: torch.Tensor, batch: int) -> torch.Tensor:
        """What blocks say of their keys [B * blocks, back + block, d], added: [B, S, d]."""
        if not self.back:
            return grad
        reach, dim = self.back // self.block, grad.shape[-1]
        blocks = grad.view(batch, -1, reach + 1, self.block, dim)
        num_blocks = blocks.shape[1]
        total = grad.new_zeros((batch, num_blocks + reach, self.block, dim))
        for place in range(reach + 1):
            total[:, place : place + num_blocks] += blocks[:, :, place]
        return total[:, reach:].flatten(1, 2)

    def logs(self, log_total: torch.Tensor) -> torch.Tensor:
        """[B, H, S] -> [B * blocks, H, block]"""
        batch, heads = log_total.shape[:2]
        parts = log_total.view(batch, heads, -1, self.block)
        return parts.transpose(1, 2).flatten(0, 1).contiguous()


@lru_cache(maxsize=16)
def _window_mask(cut: _Cut, num_blocks: int, batch: int, window: int) -> torch.Tensor:
    """[B * blocks, 1, block, back + block]"""
    keys = torch.arange(cut.back + cut.block)[None, :] - cut.back
    distance = torch.arange(cut.block)[:, None] - keys
    is_near = (distance >= 0) & (distance < window)
    first = torch.arange(num_blocks)[:, None, None] * cut.block
    is_seen = is_near & (first + keys >= 0)
    mask = torch.zeros(is_seen.shape).masked_fill(~is_seen, HIDDEN)
    whole = mask[None].expand(batch, *mask.shape)
    return whole.reshape(-1, 1, *mask.shape[1:]).contiguous()


class _Attention(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        query: torch.Tensor,
        kv: torch.Tensor,
        sinks: torch.Tensor,
        window: int,
        entries: torch.Tensor | None,
        mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        batch, length, heads, dim = query.shape
        scale = dim**-0.5
        cut = _Cut.of(length, window)
        keys = cut.keys(kv, heads)
        near_mask = _window_mask(cut, length // cut.block, batch, window)
        near, near_log = _forward(
            cut.rows(query), keys, keys, 0.0, False, attn_mask=near_mask, scale=scale
        )
        near = near.transpose(1, 2).reshape(query.shape)
        near_log = near_log.view(batch, -1, heads, cut.block).transpose(1, 2).flatten(2)
        log_total = torch.logaddexp(near_log, sinks[None, :, None])
        far = far_log = None
        if entries is not None and mask is not None and entries.shape[1]:
            wide = entries[:, None].expand(-1, heads, -1, -1)
            far, far_log = _forward(
                query.transpose(1, 2), wide, wide, 0.0, False, attn_mask=mask[:, None], scale=scale
            )
            log_total = torch.logaddexp(log_total, far_log)
        output = near * _share(near_log, log_total)
        if far is not None and far_log is not None:
            output += far.transpose(1, 2) * _share(far_log, log_total)
        ctx.save_for_backward(query, kv, sinks, entries, mask, output, log_total)
        ctx.window = window
        ctx.mark_non_differentiable(log_total)
        return output, log_total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:  # type: ignore[override]
        query, kv, sinks, entries, mask, output, log_total = ctx.saved_tensors
        batch, length, heads, dim = query.shape
        scale, window = dim**-0.5, ctx.window
        grad = grad.contiguous()
        delta = (grad * output).sum(-1).transpose(1, 2)
        grad_sinks = -((sinks[None, :, None] - log_total).exp() * delta).sum((0, 2))
        cut = _Cut.of(length, window)
        keys = cut.keys(kv, heads)
        near_mask = _window_mask(cut, length // cut.block, batch, window)
        parts = [cut.rows(part) for part in (grad, query, output)]
        grad_query, *grad_keys = _backward(
            parts[0], parts[1], keys, keys, parts[2], cut.logs(log_total), 0.0, False,
            attn_mask=near_mask, scale=scale,
        )  # fmt: skip
        grad_query = grad_query.transpose(1, 2).reshape(query.shape)
        grad_kv = cut.joined((grad_keys[0] + grad_keys[1]).sum(1), batch)
        grad_entries = None
        if entries is not None and mask is not None and entries.shape[1]:
            wide = entries[:, None].expand(-1, heads, -1, -1)
            turned = [part.transpose(1, 2) for part in (grad, query, output)]
            far_query, *far_keys = _backward(
                turned[0], turned[1], wide, wide, turned[2], log_total.contiguous(), 0.0, False,
                attn_mask=mask[:, None], scale=scale,
            )  # fmt: skip
            grad_query = grad_query + far_query.transpose(1, 2)
            grad_entries = (far_keys[0] + far_keys[1]).sum(1)
        return grad_query, grad_kv, grad_sinks, None, grad_entries, None


_attention: Any = _Attention.apply


def _share(log_part: torch.Tensor, log_total: torch.Tensor) -> torch.Tensor:
    """[B, S, H, 1] of logs [B, H, S]."""
    return (log_part - log_total).exp().transpose(1, 2)[..., None]
