"""From the streams of the last layer to logits."""

from __future__ import annotations

import torch

from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.mhc import collapse, stream_logits
from rorqual_engine.models.deepseek.norms import rms_norm
from rorqual_engine.models.linear import Linear


class FinalHead:
    """Collapses the streams, norms them, and predicts."""

    def __init__(
        self, weights: DeepseekWeights, config: DeepseekConfig, *, prefix: str = "",
        output: Linear | None = None,
    ) -> None:  # fmt: skip
        """prefix: such as mtp.0. for a draft's; output: matrix shared with another head."""
        self._eps, self._hc_eps = config.eps, config.streams.eps
        self._norm = weights.vector(f"{prefix}norm.weight", (config.hidden,))
        self.output = output or weights.linear("head.weight")
        self._own_pre = None
        if not config.streams.is_lagged:
            self._own_pre = tuple(
                weights.vector(f"{prefix}hc_head_{part}") for part in ("fn", "base", "scale")
            )

    def __call__(self, streams: torch.Tensor, last_pre: torch.Tensor | None) -> torch.Tensor:
        """fp32 logits [T, V]. streams: [T, n, D]; last_pre: [T, n] of the last sublayer."""
        return self.of_collapsed(self.collapsed(streams, last_pre))

    def collapsed(self, streams: torch.Tensor, last_pre: torch.Tensor | None) -> torch.Tensor:
        """The streams as one row each, before the norm, [T, D]."""
        pre = self._pre(streams) if self._own_pre else last_pre
        assert pre is not None
        return collapse(streams, pre)

    def of_collapsed(self, rows: torch.Tensor) -> torch.Tensor:
        """fp32 logits [T, V] of rows [T, D]."""
        return self.output(rms_norm(rows, self._norm, self._eps)).float()

    def _pre(self, streams: torch.Tensor) -> torch.Tensor:
        assert self._own_pre
        fn, base, scale = self._own_pre
        logits = stream_logits(streams, fn, self._eps)
        return torch.sigmoid(logits * scale + base) + self._hc_eps
