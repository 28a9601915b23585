"""Step costs at a start: measured once a model and machine, read from then on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import PAGE_TOKENS, KvLayout, PagedKvCache, uniform_layout
from rorqual_engine.models import CausalModel
from rorqual_prefill.calibration import calibrated_cost


class CountedModel(CausalModel):
    """Logits of nothing; counts its steps."""

    def __init__(self) -> None:
        self.kv_layout: KvLayout = uniform_layout(1, 4)
        self.fingerprint = "counted"
        self.max_context_tokens = 4096
        self.device = torch.device("cpu")
        self.num_steps = 0

    def forward(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> torch.Tensor:
        self.num_steps += 1
        return torch.zeros(len(chunks), 4)


@pytest.fixture
def model() -> CountedModel:
    return CountedModel()


def test_the_second_start_reads_what_the_first_one_measured(
    tmp_path: Path, model: CountedModel
) -> None:
    cache = model.new_cache(32)
    first = calibrated_cost(tmp_path, model, cache, budget_s=5.0)
    num_steps = model.num_steps
    assert first is not None and num_steps > 0 and cache.num_used == 0
    assert calibrated_cost(tmp_path, model, cache, budget_s=5.0) == first
    assert model.num_steps == num_steps


def test_what_only_some_of_the_points_tell_is_used_and_not_kept(
    tmp_path: Path, model: CountedModel
) -> None:
    cost = calibrated_cost(tmp_path, model, model.new_cache(512 // PAGE_TOKENS), budget_s=5.0)
    assert cost is not None and cost.a1_s > 0 and cost.a2_s == 0.0
    assert not list(tmp_path.iterdir())


def test_a_short_context_is_measured_once(tmp_path: Path, model: CountedModel) -> None:
    model.max_context_tokens = 512  # two points have more
    cache = model.new_cache(32)
    first = calibrated_cost(tmp_path, model, cache, budget_s=5.0)
    num_steps = model.num_steps
    assert first is not None and num_steps > 0
    assert calibrated_cost(tmp_path, model, cache, budget_s=5.0) == first
    assert model.num_steps == num_steps


def test_nothing_is_measured_without_time(tmp_path: Path, model: CountedModel) -> None:
    assert calibrated_cost(tmp_path, model, model.new_cache(32), budget_s=0.0) is None
    assert model.num_steps == 0 and not list(tmp_path.iterdir())


def test_a_cache_too_small_to_measure_leaves_the_cost_unknown(
    tmp_path: Path, model: CountedModel
) -> None:
    assert calibrated_cost(tmp_path, model, model.new_cache(1), budget_s=0.01) is None
