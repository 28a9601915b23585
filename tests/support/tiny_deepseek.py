"""Small random DeepSeek V4 models in Hugging Face form, saved by transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

TINY_V4: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "moe_intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 24,
    "num_experts_per_tok": 2,
    "n_routed_experts": 8,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": 8,
    "sliding_window": 16,
    "compress_ratios": [0, 4, 128, 4, 128, 4],
    "compress_rate_hca": 16,
    "num_hash_layers": 2,
    "max_position_embeddings": 4096,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 256,
    },
    "initializer_range": 0.1,
    "eos_token_id": 1,
}


def save_tiny_v4(
    directory: Path, *, seed: int = 0, **changes: Any
) -> transformers.DeepseekV4ForCausalLM:
    """Writes config.json and model.safetensors; returns the fp32 model that was saved.

    What transformers would set to nothing is random: sinks, biases, tables, how streams are mixed.
    """
    torch.manual_seed(seed)
    config = transformers.DeepseekV4Config(**(TINY_V4 | changes))
    config._attn_implementation = "eager"
    model = transformers.DeepseekV4ForCausalLM(config)
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith(("norm.weight", "layernorm.weight", "scale")):
                weight += 0.3 * torch.randn_like(weight)
            elif name.endswith(("sinks", "position_bias", "base", "correction_bias")):
                weight += 0.5 * torch.randn_like(weight)
            elif name.endswith("tid2eid"):
                rows = torch.rand(len(weight), config.n_routed_experts).argsort(-1)
                weight.copy_(rows[:, : weight.shape[1]])
    model.eval().save_pretrained(directory)
    model.saved_in = str(directory)
    return model
