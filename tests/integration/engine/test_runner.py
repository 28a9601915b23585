"""The bare engine's continuous batching changes no token."""

from __future__ import annotations

import numpy as np
import pytest
from rorqual_engine.errors import BadChunk, NoPages
from rorqual_engine.models import CausalModel
from rorqual_engine.runner import BareEngine, GenerationParams


@pytest.fixture(scope="module")
def prompts(model: CausalModel) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(20, model.vocab_size, n).tolist() for n in (3, 150, 1, 129)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_batching_and_chunking_change_no_token(
    model: CausalModel, prompts: list[list[int]], temperature: float
) -> None:
    params = [GenerationParams(4, temperature, seed=i) for i in range(len(prompts))]
    alone = [
        BareEngine(model, num_pages=4).generate([p], q)[0]
        for p, q in zip(prompts, params, strict=True)
    ]
    together = BareEngine(model, num_pages=16).generate(prompts, params)
    cramped = BareEngine(model, num_pages=3, max_running=2, chunk_tokens=33)
    assert together == alone
    assert cramped.generate(prompts, params) == alone
    assert cramped.cache.num_free == 3


def test_every_page_comes_back_after_a_refusal(
    model: CausalModel, prompts: list[list[int]]
) -> None:
    engine = BareEngine(model, num_pages=2)
    with pytest.raises(NoPages):
        engine.generate([prompts[0], [1] * 300], GenerationParams(2))
    with pytest.raises(BadChunk):
        engine.generate([prompts[0], []], GenerationParams(2))
    assert engine.cache.num_free == 2
    engine.cache.check_integrity()
