"""Published configs become the layer plans of the design; faults name their key."""

from __future__ import annotations

from typing import Any

import pytest
from rorqual_engine.errors import CorruptModel, UnsupportedModel
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.prepare.random_v41 import TINY_V41

from tests.support.deepseek_configs import V4_FLASH, V41_FLASH


def test_v4_flash_layers() -> None:
    config = DeepseekConfig.from_hf(V4_FLASH)
    kinds = [plan.kind for plan in config.layers]
    assert (kinds.count("window"), kinds.count("csa"), kinds.count("hca")) == (2, 21, 20)
    assert kinds[:5] == ["window", "window", "csa", "hca", "csa"]
    assert [plan.router for plan in config.layers[:4]] == ["hash"] * 3 + ["topk"]
    assert all(plan.owns_entries for plan in config.layers[2:])
    assert config.q_head_norm and not config.streams.is_lagged
    assert config.num_encoder_layers == 43
    assert config.rope_compress.yarn is not None
    assert config.rope_compress.yarn.original_tokens == 65536


def test_v41_flash_layers() -> None:
    config = DeepseekConfig.from_hf(V41_FLASH)
    layers = config.layers
    assert [plan.index for plan in layers if plan.owns_entries] == [2, 8, 14, 20]
    assert [layers[i].kv_source for i in (1, 7, 13, 19, 39)] == [None, 2, 8, 14, 20]
    assert [layers[i].index_source for i in (7, 20, 23, 24, 39)] == [2, 20, 20, 24, 36]
    assert [i.index for i in layers if i.candidate_source is not None] == [20, 24, 28, 32, 36]
    assert [plan.index for plan in layers if plan.is_late] == list(range(20, 40))
    assert [plan.index for plan in layers if plan.has_engram] == [1, 14]
    assert all(plan.router == "topk" for plan in layers)
    assert config.streams.is_lagged and not config.q_head_norm
    assert config.eps == 1e-20


def test_tiny_v41_is_the_small_configuration_of_the_design() -> None:
    config = DeepseekConfig.from_hf(TINY_V41)
    assert [plan.ratio for plan in config.layers] == [0, 0, 2, 2, 2, 1, 1, 1, 1, 1]
    assert config.num_encoder_layers == 5
    assert [plan.index_source for plan in config.layers[2:]] == [2, 2, 2, 5, 5, 7, 7, 7]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head_dim": None}, "head_dim is missing"),
        ({"hidden_size": "wide"}, "hidden_size must be a whole number"),
        ({"compress_ratios": [0, 2]}, "compress_ratios names fewer"),
        ({"compress_ratios": [3] * 40}, "compress_ratios may be 0, 1 or 2"),
        ({"kv_source_layers": [8, 14, 20]}, "kv_source_layers has none of ratio 2"),
        ({"kv_source_layers": [2, 9, 14, 20]}, "kv_source_layers must choose"),
        ({"index_source_layers": [20, 8]}, "index_source_layers must ascend"),
        ({"engram_layers": [1, 21]}, "engram_layers has a late layer"),
        ({"engram_config": {"max_ngram": "many"}}, r"engram_config\.max_ngram"),
        ({"o_groups": 7}, "o_groups must divide"),
        ({"sliding_window": 256}, "sliding_window is more than a page"),
        ({"num_experts_per_tok": 900}, "num_experts_per_tok is more"),
        ({"rope_scaling": {"type": "yarn"}}, r"rope_scaling\.factor is missing"),
    ],
)
def test_faults_name_the_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CorruptModel, match=said):
        DeepseekConfig.from_hf({**V41_FLASH, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"late_start_layer": 21}, "late_start_layer 21"),
        ({"candidate_source_layer": 24}, "candidate_source_layer 24"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"rope_scaling": {"type": "spiral"}}, "rope_type"),
    ],
)
def test_unknown_variants_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        DeepseekConfig.from_hf({**V41_FLASH, **changes})
