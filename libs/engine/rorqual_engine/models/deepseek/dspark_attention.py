"""Attention of a block of guesses: every row sees the whole block and the context before it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from rorqual_engine.kernels.deepseek_attention_ops import (
    PagedRows,
    RowTables,
    attend,
    prepare,
    supports_attention,
)
from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.norms import rms_norm
from rorqual_engine.models.deepseek.rope import RopeTable, rotate
from rorqual_engine.models.drafts import Anchor
from rorqual_engine.models.linear import Linear
from rorqual_engine.ref.precision import widened


@dataclass(frozen=True)
class BlockRows:
    """S blocks of g rows each, block after block, as if they were chunks of a pass."""

    tables: RowTables
    block: int
    window: int
    """Positions before a block that its rows see."""
    device: torch.device

    @classmethod
    def behind(
        cls, anchors: list[Anchor], block: int, window: int, device: torch.device
    ) -> BlockRows:
        """Each block begins with its anchor."""
        num = len(anchors)
        begins = np.array([anchor.position for anchor in anchors], np.int64)
        tables = RowTables(
            positions=(begins[:, None] + np.arange(block)).ravel(),
            row_chunk=np.repeat(np.arange(num, dtype=np.int64), block),
            starts=begins,
            ends=begins + block,
            firsts=np.arange(num, dtype=np.int64) * block,
            floors=np.array([max(anchor.window_floor, 0) for anchor in anchors], np.int64),
            slots=np.array([anchor.window for anchor in anchors], np.int64),
            num_stored=np.zeros(num, np.int64),
            pages=np.zeros(0, np.int32),
            page_starts=np.zeros(num, np.int32),
        )
        return cls(tables, block, window, device)

    @property
    def num_blocks(self) -> int:
        return len(self.tables.starts)

    @cached_property
    def reaches(self) -> np.ndarray:
        """int64 [S * g]: the last position that a row sees."""
        return np.repeat(self.tables.ends - 1, self.block)

    @cached_property
    def positions(self) -> torch.Tensor:
        """int64 [S * g]"""
        return torch.from_numpy(self.tables.positions).to(self.device)

    @cached_property
    def before(self) -> torch.Tensor:
        """int64 [S, W]: the positions before each block."""
        offsets = np.arange(-self.window, 0)
        return torch.from_numpy(self.tables.starts[:, None] + offsets).to(self.device)

    @cached_property
    def is_seen(self) -> torch.Tensor:
        """bool [S, W]: which of them hold something to read."""
        return self.before >= torch.from_numpy(self.tables.floors).to(self.device)[:, None]

    @cached_property
    def slots(self) -> torch.Tensor:
        """int64 [S]"""
        return torch.from_numpy(self.tables.slots).to(self.device)


class BlockAttention:
    """The sublayer of one stage."""

    def __init__(
        self, weights: DeepseekWeights, prefix: str, config: DeepseekConfig, rope: RopeTable
    ) -> None:
        """prefix: such as mtp.0.attn. Raises: CorruptModel."""
        self._config, self._rope = config, rope
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
        self._is_compiled = (
            supports_attention(dim, config.q_rank, config.num_heads)
            and weights.device.type == "cpu"
            and weights.dtype == torch.bfloat16
            and weights.kernels is None
        )

    def __call__(self, x: torch.Tensor, rows: BlockRows, ring: torch.Tensor) -> torch.Tensor:
        """x: [S * g, D], after the norm; ring: the stage's keys [slots, ring, d]. Returns
        [S * g, D]."""
        run = self._run_compiled if self._is_compiled else self._run
        parts = run(x, rows, ring)
        grouped = [linear(part) for linear, part in zip(self._out_a, parts, strict=True)]
        return self._out_b(torch.cat(grouped, dim=-1))

    def _run_compiled(
        self, x: torch.Tensor, rows: BlockRows, ring: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """By group of heads."""
        config, tables = self._config, rows.tables
        turn = self._rope.turn(tables.highest_end)
        norms = self._q_norm, self._kv_norm
        q_latent, kv = prepare(self._first(x), tables, turn, *norms, config.eps)
        output = attend(
            self._wq_b(q_latent),
            kv,
            tables,
            turn,
            PagedRows(ring),
            None,
            None,
            self._sinks,
            window=rows.window + rows.block,
            groups=config.out_groups,
            q_norm_eps=config.eps if config.q_head_norm else None,
            reaches=rows.reaches,
        )
        return output.unbind(0)

    def _run(
        self, x: torch.Tensor, rows: BlockRows, ring: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The same in plain torch, in fp32 or on any device."""
        config = self._config
        cos, sin = self._rope.at(rows.positions, rows.tables.highest_end)
        q_latent, kv = torch.split(self._first(x), [config.q_rank, config.head_dim], dim=-1)
        q_latent = rms_norm(q_latent, self._q_norm, config.eps)
        query = self._wq_b(q_latent).view(len(x), config.num_heads, config.head_dim)
        if config.q_head_norm:
            query = rms_norm(query, None, config.eps)
        query = rotate(query, cos, sin).view(rows.num_blocks, -1, *query.shape[1:])
        kv = rotate(rms_norm(kv, self._kv_norm, config.eps), cos, sin)
        own = kv.view(rows.num_blocks, -1, config.head_dim)
        context = ring[rows.slots[:, None], rows.before % ring.shape[1]]
        is_seen = torch.cat([rows.is_seen, rows.is_seen.new_ones(own.shape[:2])], dim=1)
        output = attend_block(query, torch.cat([context, own], dim=1), is_seen, self._sinks)
        output = rotate(output.flatten(0, 1), cos, sin, back=True).flatten(1)
        return output.chunk(config.out_groups, dim=-1)


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
