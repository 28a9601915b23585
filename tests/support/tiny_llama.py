"""Small random models in Hugging Face form, saved by transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers


def save_tiny_llama(
    directory: Path, *, seed: int = 0, family: str = "llama", **changes: Any
) -> transformers.PreTrainedModel:
    """Writes config.json and model.safetensors; returns the fp32 model that was saved."""
    torch.manual_seed(seed)
    fields: dict[str, Any] = {
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.2,
    } | changes
    if family == "qwen2":
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**fields))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("bias", "norm.weight", "layernorm.weight")):
                weight += 0.3 * torch.randn_like(weight)
    model.eval().save_pretrained(directory)
    return model
