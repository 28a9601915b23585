"""A draft module of random weights for a small Llama."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rorqual_engine.models.llama_layer import LlamaConfig
from safetensors.torch import save_file

DSPARK: dict[str, Any] = {
    "block": 4,
    "taps": [1, 3],
    "num_layers": 2,
    "rank": 16,
    "num_draft_tokens": 200,
    "confidence_temperatures": [1.0, 0.5, 2.0, 1.0],
}


def random_draft(
    config: LlamaConfig, dspark: dict[str, Any], seed: int = 0
) -> dict[str, torch.Tensor]:
    """fp32 tensors by name."""
    random = torch.Generator().manual_seed(seed)
    hidden, shape, rank = config.hidden, config.shape, dspark["rank"]
    num_tokens, last = dspark["num_draft_tokens"], f"mtp.{dspark['num_layers'] - 1}"
    shapes = {
        "mtp.0.main_proj.weight": (hidden, len(dspark["taps"]) * hidden),
        "mtp.0.main_norm.weight": (hidden,),
        "mtp.0.block_embed.weight": (dspark["block"], hidden),
        f"{last}.norm.weight": (hidden,),
        f"{last}.markov_head.embed_proj.weight": (rank, hidden),
        f"{last}.markov_head.head.weight": (num_tokens, rank),
        f"{last}.confidence_head.proj.weight": (1, hidden + rank),
    }
    for layer in range(dspark["num_layers"]):
        shapes |= {
            f"mtp.{layer}.input_layernorm.weight": (hidden,),
            f"mtp.{layer}.self_attn.q_proj.weight": (shape.q_dim, hidden),
            f"mtp.{layer}.self_attn.k_proj.weight": (shape.kv_dim, hidden),
            f"mtp.{layer}.self_attn.v_proj.weight": (shape.kv_dim, hidden),
            f"mtp.{layer}.self_attn.o_proj.weight": (hidden, shape.q_dim),
            f"mtp.{layer}.post_attention_layernorm.weight": (hidden,),
            f"mtp.{layer}.mlp.gate_proj.weight": (config.inner, hidden),
            f"mtp.{layer}.mlp.up_proj.weight": (config.inner, hidden),
            f"mtp.{layer}.mlp.down_proj.weight": (hidden, config.inner),
        }
    found = {name: 0.2 * torch.randn(s, generator=random) for name, s in shapes.items()}
    for name in found:
        if name.endswith("norm.weight"):
            found[name] += 1
    chosen = torch.randperm(config.vocab_size, generator=random)[:num_tokens]
    return {**found, f"{last}.token_ids": chosen.sort().values.to(torch.int32)}


def add_draft(directory: Path, seed: int = 0, **changes: Any) -> dict[str, torch.Tensor]:
    """Adds a draft module to a model directory; what was written."""
    path = directory / "config.json"
    fields = json.loads(path.read_text())
    fields["dspark_config"] = dspark = DSPARK | changes
    tensors = random_draft(LlamaConfig.from_hf(fields), dspark, seed)
    save_file(tensors, directory / "draft.safetensors", metadata={"format": "pt"})
    path.write_text(json.dumps(fields))
    return tensors
