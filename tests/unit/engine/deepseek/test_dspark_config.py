"""dspark_config: what is read, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from rorqual_engine.errors import CorruptModel, UnsupportedModel
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.dspark_config import DsparkConfig
from rorqual_engine.prepare.random_v41 import TINY_V41

from tests.support.deepseek_configs import V4_FLASH, V41_FLASH


def test_what_is_not_said_is_the_models() -> None:
    config = DeepseekConfig.from_hf(V41_FLASH)
    moe = config.moe
    expected = DsparkConfig(
        5, (37, 38, 39), 128799, 256, moe.num_experts, moe.top_k, (1.0, 1.0, 1.0, 1.0, 1.0)
    )
    assert config.dspark == expected


def test_v4_reads_what_leaves_a_layer() -> None:
    draft = {"block": 5, "rank": 256, "noise_id": 128799, "taps": [40, 41, 42]}
    found = DeepseekConfig.from_hf({**V4_FLASH, "dspark_config": draft}).dspark
    assert found is not None and found.taps == (41, 42, 43)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"block": 17}, CorruptModel),
        ({"taps": []}, CorruptModel),
        ({"taps": [4, 9]}, UnsupportedModel),
        ({"taps": [8, 10]}, CorruptModel),
        ({"noise_id": 4096}, CorruptModel),
        ({"num_experts_per_tok": 9}, CorruptModel),
        ({"confidence_temperatures": [1.0]}, CorruptModel),
        ({"confidence_temperatures": [1, 1, 1, 1, 0]}, CorruptModel),
    ],
)
def test_wrong_keys_are_named(change: dict[str, Any], error: type[Exception]) -> None:
    fields = {**TINY_V41, "dspark_config": {**TINY_V41["dspark_config"], **change}}
    with pytest.raises(error, match=rf"dspark_config\.{next(iter(change))}"):
        DeepseekConfig.from_hf(fields)
