"""Changes that make random-v41 smaller still, for `write_random_v41`."""

from __future__ import annotations

from typing import Any

FOUR_LAYERS: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "compress_ratios": [0, 2, 1, 1],
    "kv_source_layers": [1, 2],
    "index_source_layers": [1, 2],
    "candidate_source_layer": None,
    "late_start_layer": 2,
    "image_token_id": 250,
    "vision_config": None,
    "dspark_config": None,
}
"""A window layer, one of each ratio, two late ones."""
CANDIDATES: dict[str, Any] = {
    "index_source_layers": [1, 2, 3],
    "candidate_source_layer": 2,
    "candidate_blocks": 3,
    "candidate_block_entries": 2,
}
"""The last layer chooses within the blocks of the one before."""
ENGRAM: dict[str, Any] = {
    "engram_layers": [0, 1],
    "engram_config": {
        "max_ngram": 4, "num_heads": 2, "head_dim": 16, "table_rows": 50, "vocab_size": 90,
        "pad_id": 3,
    },
}  # fmt: skip
DSPARK: dict[str, Any] = {
    "dspark_config": {
        "block": 3, "taps": [2, 3], "noise_id": 255, "rank": 8, "num_experts": 4,
        "num_experts_per_tok": 2,
    },
}  # fmt: skip
