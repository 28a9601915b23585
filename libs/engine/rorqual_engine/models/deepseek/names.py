"""One name for every tensor, whichever of the known layouts a file is in.

Published checkpoints use the short names (`layers.0.attn.wkv.weight`); transformers' modules use
long ones (`model.layers.0.self_attn.kv_proj.weight`). Inside the engine all are short.
"""

from __future__ import annotations

import re

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
        (r"\.weight_scale(_inv)?$", ".scale"),
    ]
]
_APART = ("vision.", "aligner.", "model.vision.", "model.aligner.")
"""Parts with names of their own, the same in every layout."""


def canonical_name(name: str) -> str:
    """The published layout's name of a tensor."""
    if name.startswith(_APART):
        return name.removeprefix("model.")
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    return name
