"""Steps of a layer on the registry's kernels: accelerators, or whatever an operator chose."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig, IndexConfig
from rorqual_engine.models.deepseek.experts import Routing, StackedExperts
from rorqual_engine.models.deepseek.step import Rows
from rorqual_engine.models.device_kernels import DeviceKernels

_MOST_SCORES = 1 << 28
"""Of index scores at once, fp32; more rows are cut. A row over a million entries has so many."""


def attend_rows(
    kernels: DeviceKernels,
    query: torch.Tensor,
    kv: torch.Tensor,
    ring: torch.Tensor,
    entries: torch.Tensor | None,
    selection: torch.Tensor | None,
    sinks: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    rows: Rows,
    *,
    window: int,
) -> torch.Tensor:
    """Attention of rotated query [T, H, d] and kv [T, d], turned back; kv goes to the ring then.

    angles: (cos, sin) of the rows; the rest as attend_entries takes it. Returns [T, H, d].
    """
    places = rows.places
    output: torch.Tensor = kernels("attend_entries")(
        query, kv, ring, entries, selection, sinks, *angles, places, window=window
    )
    kernels("write_window")(ring, kv, places)
    return output


def select_rows(
    kernels: DeviceKernels,
    queries: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    rows: Rows,
    config: IndexConfig,
    *,
    ratio: int,
    makes_blocks: bool,
    candidates: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(entries [T, k], candidate blocks [T, b] where they are made), ascending, then -1.

    queries: [T, heads, dim], rotated; candidates: blocks to choose within, None = everywhere.
    """
    num_entries = rows.tables.highest_end // ratio
    num_columns = num_entries if candidates is None else candidates.shape[1] * config.block_entries
    step = max(1, _MOST_SCORES // max(1, num_columns))
    entries, blocks = [], []
    for at in range(0, len(queries), step):
        part = slice(at, at + step)
        within = {
            "blocks": None if candidates is None else candidates[part],
            "block_entries": config.block_entries,
        }
        scores = kernels("index_scores")(
            queries[part], weights[part], keys, rows.places.part(part), ratio=ratio,
            num_entries=num_entries, **within,
        )  # fmt: skip
        if makes_blocks:
            find = kernels("best_blocks")
            blocks.append(find(scores, config.num_blocks, block_entries=config.block_entries))
        entries.append(kernels("best_entries")(scores, config.top_k, **within))
    return torch.cat(entries), torch.cat(blocks) if makes_blocks else None


class GroupedExperts(StackedExperts):
    """All experts' matrices in two tensors, rows grouped by expert."""

    def __init__(
        self, weights: DeepseekWeights, prefix: str, config: DeepseekConfig, held: Sequence[int]
    ) -> None:
        """held: numbers of the experts to load; the shared one lies behind them."""
        assert weights.kernels is not None
        self._run = weights.kernels("run_experts")
        names = [f"{prefix}.experts.{number}" for number in held]
        names.append(f"{prefix}.shared_experts")
        self._clamp = config.moe.clamp
        # Held [out, in], as stored, and used as [in, out].
        parts = [[weights.get(f"{name}.{part}.weight") for part in ("w1", "w3")] for name in names]
        gate_up = torch.stack([torch.cat(part) for part in parts])
        down = torch.stack([weights.get(f"{name}.w2.weight") for name in names])
        self._stacks = gate_up, down
        self._gate_up, self._down = gate_up.transpose(1, 2), down.transpose(1, 2)

    @staticmethod
    def supports(weights: DeepseekWeights) -> bool:
        return weights.kernels is not None and not weights.keeps_quantized

    def mixed(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        pad = torch.nn.functional.pad
        experts = pad(routing.experts, (0, 1), value=len(self._down) - 1)
        return self._of(x, experts, pad(routing.weights, (0, 1), value=1.0))

    def each(self, rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        ones = torch.ones((len(rows), 1), device=rows.device)
        return self._of(rows, experts[:, None], ones)

    def shared(self, x: torch.Tensor) -> torch.Tensor:
        last = torch.full((len(x),), len(self._down) - 1, device=x.device)
        return self.each(x, last)

    def _of(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._run(
            x, experts, weights, self._gate_up, self._down, clamp=self._clamp
        )
        return found.to(x.dtype)
