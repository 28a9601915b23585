"""A random V4.1 checkpoint of a small configuration: the mechanics of the model, not its worth."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from rorqual_engine.models.deepseek.config import V41_ARCHITECTURE, DeepseekConfig
from rorqual_engine.models.deepseek.plan import LayerPlan
from rorqual_engine.prepare.random_parts import (
    NamedShape,
    draft_ends_shapes,
    engram_shapes,
    vision_shapes,
)

TINY_V41: dict[str, Any] = {
    "architectures": [V41_ARCHITECTURE],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "vocab_size": 4096,
    "hidden_size": 192,
    "num_hidden_layers": 10,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 96,
    "o_groups": 4,
    "o_lora_rank": 48,
    "sliding_window": 128,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 65536,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 4096,
    },
    "compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1, 1, 1],
    "kv_source_layers": [2, 5],
    "index_source_layers": [2, 5, 7],
    "candidate_source_layer": 5,
    "candidate_blocks": 16,
    "candidate_block_entries": 8,
    "late_start_layer": 5,
    "index_n_heads": 16,
    "index_head_dim": 32,
    "index_topk": 32,
    "n_routed_experts": 16,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "moe_intermediate_size": 96,
    "swiglu_limit": 10.0,
    "routed_scaling_factor": 1.5,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "image_token_id": 4090,
    "vision_config": {
        "num_hidden_layers": 2,
        "hidden_size": 96,
        "num_attention_heads": 4,
        "intermediate_size": 192,
        "patch_size": 14,
        "downsample": 3,
        "min_pixels": 7056,
        "max_tokens": 64,
    },
    "dspark_config": {
        "block": 5,
        "taps": [8, 9],
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "rank": 32,
        "noise_id": 4091,
    },
}
"""Section 6 of the design of the model: 13 million parameters of text."""


def write_random_v41(
    directory: Path, *, seed: int = 0, changes: dict[str, Any] | None = None
) -> None:
    """Writes config.json and model.safetensors of everything that the configuration names.

    The same seed, the same bytes; the text model's do not depend on what else there is.
    """
    directory.mkdir(parents=True, exist_ok=True)
    fields = {**TINY_V41, **(changes or {})}
    tensors = random_tensors(fields, seed)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")


def random_tensors(fields: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Every tensor by its checkpoint name: text, Engram, vision, draft module, as configured."""
    config = DeepseekConfig.from_hf(fields)
    tensors = random_text_tensors(config, seed)
    for number, shapes in enumerate(_part_shapes(config, fields), start=1):
        generator = torch.Generator().manual_seed(seed + 1_000_003 * number)
        tensors |= {name: _random(name, shape, generator) for name, shape in shapes}
    return tensors


def random_text_tensors(config: DeepseekConfig, seed: int) -> dict[str, torch.Tensor]:
    """Every tensor of the text model by its checkpoint name: matrices bf16, the rest fp32."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(name, shape, generator) for name, shape in text_shapes(config)}


def _part_shapes(config: DeepseekConfig, fields: dict[str, Any]) -> Iterator[list[NamedShape]]:
    """What there is beside the text model; always as many parts, absent ones are empty."""
    vision, draft = fields.get("vision_config"), fields.get("dspark_config")
    yield [shape for plan in config.layers for shape in engram_shapes(config, plan)]
    yield list(vision_shapes(config, vision)) if vision else []
    yield list(_draft_shapes(config, draft)) if draft else []


def _draft_shapes(config: DeepseekConfig, draft: dict[str, Any]) -> Iterator[NamedShape]:
    """Window-only layers with fewer experts, and what stands in front of and behind them."""
    experts = replace(
        config.moe, num_experts=draft["num_experts"], top_k=draft["num_experts_per_tok"]
    )
    stage_config = replace(config, moe=experts, image_token_id=None)
    for stage in range(len(draft["taps"])):
        plan = LayerPlan(stage, 0, "window", None, None, None, False, "topk", False)
        for name, shape in _layer_shapes(stage_config, plan):
            yield f"mtp.{stage}.{name}", shape
    yield from draft_ends_shapes(config, draft)


def text_shapes(config: DeepseekConfig) -> Iterator[NamedShape]:
    """Names and shapes of the text model's checkpoint, in the layout of the published ones."""
    yield "embed.weight", (config.vocab_size, config.hidden)
    yield "head.weight", (config.vocab_size, config.hidden)
    yield "norm.weight", (config.hidden,)
    if not config.streams.is_lagged:
        n = config.streams.num_streams
        yield "hc_head_fn", (n, n * config.hidden)
        yield "hc_head_base", (n,)
        yield "hc_head_scale", (1,)
    for plan in config.layers:
        for name, shape in _layer_shapes(config, plan):
            yield f"layers.{plan.index}.{name}", shape


def _layer_shapes(config: DeepseekConfig, plan: LayerPlan) -> Iterator[NamedShape]:
    hidden, n = config.hidden, config.streams.num_streams
    for part in ("attn", "ffn"):
        yield f"{part}_norm.weight", (hidden,)
        yield f"hc_{part}_fn", ((2 + n) * n, n * hidden)
        yield f"hc_{part}_base", ((2 + n) * n,)
        yield f"hc_{part}_scale", (3,)
    q_dim = config.num_heads * config.head_dim
    yield "attn.wq_a.weight", (config.q_rank, hidden)
    yield "attn.q_norm.weight", (config.q_rank,)
    yield "attn.wq_b.weight", (q_dim, config.q_rank)
    yield "attn.wkv.weight", (config.head_dim, hidden)
    yield "attn.kv_norm.weight", (config.head_dim,)
    yield "attn.wo_a.weight", (config.out_groups * config.out_rank, q_dim // config.out_groups)
    yield "attn.wo_b.weight", (hidden, config.out_groups * config.out_rank)
    yield "attn.attn_sink", (config.num_heads,)
    if plan.owns_entries:
        yield from _compressor_shapes(plan, "attn.compressor", hidden, config.head_dim)
    if plan.owns_index_keys and plan.kind == "latent":
        yield "attn.indexer.wk.weight", (config.index.head_dim, config.head_dim)
        yield "attn.indexer.k_norm.weight", (config.index.head_dim,)
    if plan.owns_index_keys and plan.kind == "csa":
        prefix = "attn.indexer.compressor"
        yield from _compressor_shapes(plan, prefix, hidden, config.index.head_dim)
    if plan.selects:
        heads = config.index.num_heads
        yield "attn.indexer.wq_b.weight", (heads * config.index.head_dim, config.q_rank)
        yield "attn.indexer.weights_proj.weight", (heads, hidden)
    yield from _moe_shapes(config, plan)


def _compressor_shapes(plan: LayerPlan, prefix: str, hidden: int, dim: int) -> Iterator[NamedShape]:
    width = 2 * dim if plan.kind == "csa" else dim
    yield f"{prefix}.wkv.weight", (width, hidden)
    if plan.ratio > 1:
        yield f"{prefix}.wgate.weight", (width, hidden)
    if plan.kind != "latent":
        yield f"{prefix}.ape", (plan.ratio, width)
    yield f"{prefix}.norm.weight", (dim,)


def _moe_shapes(config: DeepseekConfig, plan: LayerPlan) -> Iterator[NamedShape]:
    hidden, moe = config.hidden, config.moe
    yield "ffn.gate.weight", (moe.num_experts, hidden)
    if plan.router == "hash":
        yield "ffn.gate.tid2eid", (config.vocab_size, moe.top_k)
    else:
        yield "ffn.gate.bias", (moe.num_experts,)
        if config.image_token_id is not None:
            yield "ffn.gate.bias_vl", (moe.num_experts,)
    for name, inner in [
        *((f"ffn.experts.{e}", moe.inner) for e in range(moe.num_experts)),
        ("ffn.shared_experts", moe.inner * moe.num_shared),
    ]:
        yield f"{name}.w1.weight", (inner, hidden)
        yield f"{name}.w2.weight", (hidden, inner)
        yield f"{name}.w3.weight", (inner, hidden)


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Values with which nothing is trivial: sinks, biases and gates all matter."""
    if name.endswith("tid2eid"):
        raise NotImplementedError("V4.1 has no hash router")
    values: torch.Tensor = torch.randn(shape, generator=generator)
    if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "_scale", "_weight")):
        return torch.ones(shape).add(values, alpha=0.2)
    if "hc_" in name and name.endswith("_fn"):
        return values / math.sqrt(shape[1])
    if name.endswith((".bias", ".bias_vl")):
        return 0.1 * values
    if name.endswith(("_base", "_sink", ".ape")):
        return 0.5 * values
    is_looked_up = name.startswith("image_") or name.endswith("embed.weight")
    fan_in = 1 if is_looked_up else shape[-1]
    return (values * (1.5 / math.sqrt(fan_in))).to(torch.bfloat16)
