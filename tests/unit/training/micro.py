"""A configuration that runs in milliseconds and has every mechanism."""

from __future__ import annotations

from typing import Any

from training.tiny_v41.model.sizes import CONFIG

MICRO: dict[str, Any] = {
    **CONFIG,
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 32,
    "o_lora_rank": 24,
    "sliding_window": 64,
    "compress_ratios": [0, 2, 2, 1, 1, 1],
    "kv_source_layers": [1, 3],
    "index_source_layers": [1, 3, 5],
    "candidate_source_layer": 3,
    "candidate_blocks": 6,
    "candidate_block_entries": 4,
    "late_start_layer": 3,
    "index_topk": 8,
    "n_routed_experts": 8,
    "moe_intermediate_size": 48,
    "vision_config": {
        **CONFIG["vision_config"],
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 48,
    },
    "dspark_config": {**CONFIG["dspark_config"], "taps": [4, 5], "num_experts": 4, "rank": 16},
}
