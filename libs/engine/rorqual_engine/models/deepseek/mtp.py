"""V4's draft: from a row's streams and the token that follows it, the token after that.

One window-only layer over streams of its own, with the model's embedding and output matrix.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.head import FinalHead
from rorqual_engine.models.deepseek.layer import Layer, Streams
from rorqual_engine.models.deepseek.layout import WINDOW_RING
from rorqual_engine.models.deepseek.norms import rms_norm
from rorqual_engine.models.deepseek.plan import LayerPlan
from rorqual_engine.models.deepseek.rope import RopeTable
from rorqual_engine.models.deepseek.state import KvViews
from rorqual_engine.models.deepseek.step import Rows
from rorqual_engine.models.linear import Linear

PREFIX = "mtp.0"


class DraftWindows(KvViews):
    """Window KV of layers that are no part of the model: rings by slot, kept beside the cache.

    They don't travel with snapshots: a sequence that comes from elsewhere has its rows' floor at
    the first position that this process wrote.
    """

    def __init__(
        self, layers: range, num_slots: int, config: DeepseekConfig, weights: DeepseekWeights
    ) -> None:
        shape = (num_slots, WINDOW_RING, config.head_dim)
        self.window = {
            layer: torch.zeros(shape, dtype=weights.dtype, device=weights.device)
            for layer in layers
        }


class MtpModule:
    """The layer and what joins a row's streams to its next token."""

    def __init__(
        self, weights: DeepseekWeights, config: DeepseekConfig, embedding: torch.Tensor,
        output: Linear,
    ) -> None:  # fmt: skip
        """embedding, output: the model's. Raises: CorruptModel."""
        hidden = config.hidden
        self._config, self._weights, self._embedding = config, weights, embedding
        for name in ("e_proj", "h_proj"):
            weights.check_shape(f"{PREFIX}.{name}.weight", (hidden, hidden))
        self._of_token = weights.linear(f"{PREFIX}.e_proj.weight")
        self._of_streams = weights.linear(f"{PREFIX}.h_proj.weight")
        self._token_norm, self._streams_norm = (
            weights.vector(f"{PREFIX}.{name}.weight", (hidden,)) for name in ("enorm", "hnorm")
        )
        self._index = config.num_layers
        plan = LayerPlan(self._index, 0, "window", None, None, None, False, "topk", False)
        rope = RopeTable(config.rope_main, config.rope_dim, weights.device)
        self._layer = Layer(weights, plan, config, rope, prefix=PREFIX)
        self._head = FinalHead(weights, config, prefix=f"{PREFIX}.", output=output)

    @staticmethod
    def is_in(weights: DeepseekWeights, config: DeepseekConfig) -> bool:
        return config.num_mtp_layers > 0 and f"{PREFIX}.e_proj.weight" in weights

    def new_windows(self, num_slots: int) -> DraftWindows:
        layers = range(self._index, self._index + 1)
        return DraftWindows(layers, num_slots, self._config, self._weights)

    @torch.no_grad()
    def __call__(
        self, streams: torch.Tensor, next_ids: torch.Tensor, rows: Rows, windows: DraftWindows
    ) -> torch.Tensor:
        """fp32 logits [T, V] of the token after the next.

        streams: [T, n, D] behind the model's last layer; next_ids: int64 [T], the token at each
        row's position + 1; rows: as the model ran them. A sequence's rows come in order, each once.
        """
        eps = self._config.eps
        embedded = functional.embedding(next_ids, self._embedding)
        of_token = self._of_token(rms_norm(embedded, self._token_norm, eps))
        normed = rms_norm(streams, self._streams_norm, eps)
        of_streams = self._of_streams(normed.flatten(0, 1)).view_as(streams)
        joined = (of_token.float()[:, None, :] + of_streams.float()).to(streams.dtype)
        pre = torch.zeros(joined.shape[:2], device=joined.device)
        pre[:, 0] = 1
        found = self._layer(Streams(joined, pre), rows, windows, {})
        return self._head(found.values, found.pre)
