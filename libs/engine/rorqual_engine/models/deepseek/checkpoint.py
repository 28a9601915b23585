"""Weights of a DeepSeek checkpoint, by one name each whatever the file calls them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from rorqual_engine.errors import CorruptModel, ModelNotFound
from rorqual_engine.models.linear import Linear

_RENAMES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"^model\.", ""),
        (r"^embed_tokens\.", "embed."),
        (r"^lm_head\.", "head."),
        (r"^hc_head\.hc_", "hc_head_"),
        (r"\.self_attn\.", ".attn."),
        (r"\.mlp\.", ".ffn."),
        (r"\.input_layernorm\.", ".attn_norm."),
        (r"\.post_attention_layernorm\.", ".ffn_norm."),
        (r"\.(attn|ffn)_hc\.", r".hc_\1_"),
        (r"\.attn\.norm\.", ".attn.kv_norm."),
        (r"\.sinks$", ".attn_sink"),
        (r"\.position_bias$", ".ape"),
        (r"\.compressor\.indexer\.scorer\.", ".indexer."),
        (r"\.compressor\.indexer\.q_b_proj\.", ".indexer.wq_b."),
        (r"\.compressor\.indexer\.", ".indexer.compressor."),
        (r"\.compressor\.kv_norm\.", ".compressor.norm."),
        (r"\.compressor\.gate_proj\.", ".compressor.wgate."),
        (r"\.q_a_norm\.", ".q_norm."),
        (r"\.q_([ab])_proj\.", r".wq_\1."),
        (r"\.o_([ab])_proj\.", r".wo_\1."),
        (r"\.kv_proj\.", ".wkv."),
        (r"\.gate\.e_score_correction_bias$", ".gate.bias"),
        (r"\.gate_proj\.", ".w1."),
        (r"\.down_proj\.", ".w2."),
        (r"\.up_proj\.", ".w3."),
    ]
]


def canonical_name(name: str) -> str:
    """The published layout's name of a tensor: `layers.0.attn.wkv.weight`."""
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    return name


class DeepseekWeights:
    """Tensors by canonical name; files are memory mapped and read when asked for."""

    def __init__(self, model_dir: Path, device: torch.device, dtype: torch.dtype) -> None:
        """Raises: ModelNotFound, CorruptModel."""
        self.model_dir, self.device, self.dtype = model_dir, device, dtype
        self._files: dict[str, tuple[Any, str]] = {}
        paths = sorted(model_dir.glob("*.safetensors"))
        if not paths:
            raise ModelNotFound(model_dir, "no *.safetensors file")
        for path in paths:
            try:
                file: Any = safe_open(path, framework="pt", device="cpu")
            except SafetensorError as err:
                raise CorruptModel(path, str(err)) from err
            self._files.update({canonical_name(key): (file, key) for key in list(file.keys())})

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def raw(self, name: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """One tensor as it is stored, on the CPU. Raises: CorruptModel."""
        if name not in self._files:
            raise CorruptModel(self.model_dir, f"tensor {name} is missing")
        file, key = self._files[name]
        tensor: torch.Tensor = file.get_tensor(key)
        if shape is not None and tuple(tensor.shape) != shape:
            found = tuple(tensor.shape)
            raise CorruptModel(
                self.model_dir, f"tensor {name} has shape {found}, config.json says {shape}"
            )
        return tensor

    def get(self, name: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """One tensor on the device in the model's dtype. Raises: CorruptModel."""
        return self.raw(name, shape).to(device=self.device, dtype=self.dtype, copy=True)

    def vector(self, name: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """One tensor that stays fp32: norms, sinks, biases, what mixes streams."""
        return self.raw(name, shape).to(device=self.device, dtype=torch.float32, copy=True)

    def linear(self, *names: str) -> Linear:
        """The product with one matrix, or with several on top of each other."""
        return Linear(torch.cat([self.get(name) for name in names]).contiguous())
