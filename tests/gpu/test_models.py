"""Whole models on the accelerator say what they say on the CPU, up to rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.models import CausalModel, load_model
from rorqual_engine.runner import BareEngine, GenerationParams

from tests.support.engine_runs import cut
from tests.support.model import default_model_dir, random_v41_dir

MODELS = {"default": default_model_dir, "random-v41": random_v41_dir}
NUM_TOKENS = 300
TOLERANCE = 2e-3
"""In fp32, of logits whose standard deviation is 1 or more."""


@pytest.fixture(scope="module", params=sorted(MODELS))
def model_dir(request: pytest.FixtureRequest, device: str) -> Path:
    return MODELS[request.param]()


def _prompt(model: CausalModel) -> list[int]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(10, min(model.vocab_size, 4000), (NUM_TOKENS,), generator=generator)
    return ids.tolist()


def _logits(model: CausalModel, sizes: list[int]) -> torch.Tensor:
    cache = model.new_cache(4)
    lease = cache.allocate(model.kv_layout.num_pages(NUM_TOKENS))
    tokens = _prompt(model)
    logits = torch.empty(0)
    for start, end in cut(NUM_TOKENS, sizes):
        chunk = SequenceChunk(
            tokens[start:end], start, lease.pages, end == NUM_TOKENS, window=lease.window,
            defers_late=True,
        )  # fmt: skip
        logits = model.forward([chunk], cache)
    return logits[0].float().cpu()


SIZES = ([NUM_TOKENS], [7, 130, 64])


def test_logits_are_those_of_the_cpu(model_dir: Path, device: str) -> None:
    here = load_model(model_dir, device=device, dtype="float32")
    assert here.device.type == device
    expected = _logits(load_model(model_dir, dtype="float32"), SIZES[0])
    for sizes in SIZES:
        found = _logits(here, sizes)
        assert (found - expected).abs().max() < TOLERANCE, sizes


def test_bf16_is_as_exact_as_on_the_cpu(model_dir: Path, device: str) -> None:
    """Random weights make much of a rounding, so the measure is the CPU's own distance to fp32."""
    exact = _logits(load_model(model_dir, dtype="float32"), SIZES[0])
    usual = (_logits(load_model(model_dir), SIZES[0]) - exact).abs().mean()
    here = load_model(model_dir, device=device)
    for sizes in SIZES:
        distance = (_logits(here, sizes) - exact).abs().mean()
        assert distance < 2 * usual + 0.05, (sizes, distance, usual)


def test_generation_runs_and_repeats_itself(model_dir: Path, device: str) -> None:
    model = load_model(model_dir, device=device)
    engine = BareEngine(model, num_pages=24, chunk_tokens=128)
    prompts = [_prompt(model)[:count] for count in (5, 140, 33)]
    params = [
        GenerationParams(12, ignore_eos=True),
        GenerationParams(12, temperature=0.8, top_p=0.9, seed=4, ignore_eos=True),
        GenerationParams(12, temperature=1.0, top_k=20, seed=5, ignore_eos=True),
    ]
    first = engine.generate(prompts, params)
    assert [len(output) for output in first] == [12, 12, 12]
    assert engine.generate(prompts, params) == first
