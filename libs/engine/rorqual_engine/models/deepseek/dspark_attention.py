"""Attention of a block of guesses: every row sees the whole block and the context before it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.norms import rms_norm
from rorqual_engine.models.deepseek.rope import rotate
from rorqual_engine.models.linear import Linear
from rorqual_engine.ref.precision import widened


@dataclass(frozen=True)
class BlockRows:
    """S blocks of g rows each, block after block."""

    num_blocks: int
    token_ids: torch.Tensor
    """int64 [S * g]"""
    angles: tuple[torch.Tensor, torch.Tensor]
    """(cos, sin) of every row, [S * g, pairs]"""
    is_seen: torch.Tensor
    """bool [S, W]: which places of the context hold something to read"""


class BlockAttention:
    """The sublayer of one stage."""

    def __init__(self, weights: DeepseekWeights, prefix: str, config: DeepseekConfig) -> None:
        """prefix: such as mtp.0.attn. Raises: CorruptModel."""
        self._config = config
        dim, groups = config.head_dim, config.out_groups
        weights.check_shape(f"{prefix}.wkv.weight", (dim, config.hidden))
        weights.check_shape(f"{prefix}.wq_b.weight", (config.num_heads * dim, config.q_rank))
        self._first = weights.linear(f"{prefix}.wq_a.weight", f"{prefix}.wkv.weight")
        self._q_norm = weights.vector(f"{prefix}.q_norm.weight", (config.q_rank,))
        self._kv_norm = weights.vector(f"{prefix}.kv_norm.weight", (dim,))
        self._wq_b = weights.linear(f"{prefix}.wq_b.weight")
        shape = (groups * config.out_rank, config.num_heads * dim // groups)
        parts = torch.split(weights.get(f"{prefix}.wo_a.weight", shape), config.out_rank)
        self._out_a = [Linear(part.contiguous()) for part in parts]
        self._out_b = weights.linear(f"{prefix}.wo_b.weight")
        self._sinks = weights.vector(f"{prefix}.attn_sink", (config.num_heads,))

    def __call__(self, x: torch.Tensor, rows: BlockRows, context: torch.Tensor) -> torch.Tensor:
        """x: [S * g, D], after the norm; context: keys [S, W, d]. Returns [S * g, D]."""
        config = self._config
        cos, sin = rows.angles
        q_latent, kv = torch.split(self._first(x), [config.q_rank, config.head_dim], dim=-1)
        q_latent = rms_norm(q_latent, self._q_norm, config.eps)
        query = self._wq_b(q_latent).view(len(x), config.num_heads, config.head_dim)
        if config.q_head_norm:
            query = rms_norm(query, None, config.eps)
        query = rotate(query, cos, sin).view(rows.num_blocks, -1, *query.shape[1:])
        kv = rotate(rms_norm(kv, self._kv_norm, config.eps), cos, sin)
        own = kv.view(rows.num_blocks, -1, config.head_dim)
        is_seen = torch.cat([rows.is_seen, rows.is_seen.new_ones(own.shape[:2])], dim=1)
        output = attend_block(query, torch.cat([context, own], dim=1), is_seen, self._sinks)
        output = rotate(output.flatten(0, 1), cos, sin, back=True).flatten(1)
        parts = output.chunk(config.out_groups, dim=-1)
        grouped = [linear(part) for linear, part in zip(self._out_a, parts, strict=True)]
        return self._out_b(torch.cat(grouped, dim=-1))


def attend_block(
    query: torch.Tensor, keys: torch.Tensor, is_seen: torch.Tensor, sinks: torch.Tensor
) -> torch.Tensor:
    """Each block over keys of its own, softmax in fp32 with a sink that contributes no value.

    Sums are in fp64, so that a block's result does not depend on how many there are.
    query: [S, g, H, d]; keys: [S, k, d]; is_seen: bool [S, k]; sinks: fp32 [H]. Returns as query.
    """
    wide = widened(keys).masked_fill(~is_seen[:, :, None], 0)  # it may be anything, a NaN as well
    scores = widened(query).flatten(1, 2) @ wide.mT
    scores = scores.float().view(*query.shape[:3], -1) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~is_seen[:, None, None, :], float("-inf"))
    sink = sinks[None, None, :, None].expand(*query.shape[:3], 1)
    weights = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
    output = widened(weights).flatten(1, 2) @ wide
    return output.view(query.shape).to(query.dtype)
