"""Whole models on the registry's kernels say what they say on the CPU's own steps.

With the twins here, in fp32; with the devices' kernels in tests/gpu.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kernels.registry import KernelChoice
from rorqual_engine.models import load_model
from rorqual_engine.models.base import CausalModel
from rorqual_engine.models.deepseek.device_steps import GroupedExperts
from rorqual_engine.models.options import LoadOptions
from rorqual_engine.prepare.random_v41 import write_random_v41

from tests.support.engine_runs import cut
from tests.support.tiny_deepseek import save_tiny_v4

TOLERANCE = 1e-4
TWINS = LoadOptions(kernels=KernelChoice(everywhere="twin"))


@pytest.fixture(scope="module", params=["v4", "v41", "v41-candidates"])
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "v4":
        save_tiny_v4(directory)
    elif request.param == "v41":
        write_random_v41(directory)
    else:  # few blocks, so that they bound the choice of later index sources
        write_random_v41(directory, changes={"candidate_blocks": 3, "candidate_block_entries": 8})
    return directory


@pytest.fixture(scope="module")
def plain(model_dir: Path) -> CausalModel:
    return load_model(model_dir, dtype="float32")


@pytest.fixture(scope="module")
def on_kernels(model_dir: Path) -> CausalModel:
    return load_model(model_dir, dtype="float32", options=TWINS)


def _tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(2, 320, count).tolist()


def _logits(model: CausalModel, sizes: list[int]) -> torch.Tensor:
    """Of every chunk's last row; two sequences of 290 and 150 tokens side by side."""
    cache = model.new_cache(8)
    tokens = [_tokens(1, 290), _tokens(2, 150)]
    leases = [cache.allocate(model.kv_layout.num_pages(len(ids))) for ids in tokens]
    cuts = [list(cut(len(ids), sizes)) for ids in tokens]
    found = []
    for turn in range(max(len(parts) for parts in cuts)):
        chunks = [
            SequenceChunk(ids[slice(*parts[turn])], parts[turn][0], lease.pages, True, lease.window)
            for ids, lease, parts in zip(tokens, leases, cuts, strict=True)
            if turn < len(parts)
        ]
        found.append(model.forward(chunks, cache))
    return torch.cat(found)


@pytest.mark.parametrize("sizes", [[290], [140, 1, 3, 17]])
def test_models_give_the_same_logits(
    plain: CausalModel, on_kernels: CausalModel, sizes: list[int]
) -> None:
    found, expected = _logits(on_kernels, sizes), _logits(plain, sizes)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_kernels_are_what_ran(on_kernels: CausalModel, plain: CausalModel) -> None:
    for model, is_grouped in ((on_kernels, True), (plain, False)):
        experts = model._layers[0].moe._experts  # type: ignore[attr-defined]
        assert isinstance(experts, GroupedExperts) == is_grouped
