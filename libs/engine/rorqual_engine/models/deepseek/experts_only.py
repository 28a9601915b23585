"""What a rank without sequences needs of a model: its experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rorqual_policy.expert_placement import Cards

from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.moe import MoeLayer
from rorqual_engine.models.device_kernels import kernels_for
from rorqual_engine.models.options import LoadOptions


class ExpertsOnly:
    """The mixture layers of a model whose other parts run in other ranks."""

    def __init__(
        self, config: dict[str, Any], model_dir: Path, *, device: torch.device,
        dtype: torch.dtype, options: LoadOptions,
    ) -> None:  # fmt: skip
        """options.group: this rank's end. Raises: ModelNotFound, CorruptModel, UnsupportedModel."""
        sizes = DeepseekConfig.from_hf(config)
        weights = DeepseekWeights(
            model_dir,
            device,
            dtype,
            keeps_quantized=options.keeps_quantized,
            kernels=kernels_for(device, options.kernels),
        )
        self._layers = [
            MoeLayer.load(weights, f"layers.{plan.index}.ffn", plan, sizes, options.group)
            for plan in sizes.layers
        ]
        self._nobody = torch.empty((0, sizes.hidden), dtype=dtype, device=device)

    def take_part(self) -> None:
        """One step of the group. Raises: GroupLost."""
        for layer in self._layers:
            layer.take_part(self._nobody)

    def move_experts(self, layer: int, table: Cards) -> None:
        """See `RemoteExperts.move`."""
        self._layers[layer].move(table)
