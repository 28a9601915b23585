"""On the default model: the same sequence gives the same bits however it is run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.exactness import is_exact
from rorqual_engine.models import CausalModel
from rorqual_engine.models.linear import Linear

from tests.support.engine_runs import kv_bytes, run_in_chunks

NUM_TOKENS = 300


@pytest.fixture(scope="module")
def tokens(model: CausalModel) -> list[int]:
    return np.random.default_rng(7).integers(0, model.vocab_size, NUM_TOKENS).tolist()


@pytest.mark.parametrize(
    ("num_tokens", "sizes"),
    [(133, [1]), (133, [7]), (300, [128]), (300, [129]), (300, [1, 64, 2, 200])],
)
def test_chunking_changes_no_bit(
    model: CausalModel, tokens: list[int], num_tokens: int, sizes: list[int]
) -> None:
    tokens = tokens[:num_tokens]
    cache = model.new_cache(6)
    with cache.allocate(3) as whole, cache.allocate(3) as cut:
        expected = run_in_chunks(model, cache, tokens, whole.pages, [num_tokens])
        found = run_in_chunks(model, cache, tokens, cut.pages, sizes)
        assert torch.equal(expected, found)
        assert kv_bytes(model, cache, whole.pages, num_tokens) == kv_bytes(
            model, cache, cut.pages, num_tokens
        )


@pytest.mark.parametrize("num_neighbours", [1, 2, 15, 31])
def test_neighbours_change_no_bit(
    model: CausalModel, tokens: list[int], num_neighbours: int
) -> None:
    rng = np.random.default_rng(num_neighbours)
    cache = model.new_cache(4 + num_neighbours)
    with cache.allocate(2) as alone, cache.allocate(2) as crowded:
        expected = run_in_chunks(model, cache, tokens[:200], alone.pages, [199, 1])
        run_in_chunks(model, cache, tokens[:199], crowded.pages, [199])
        with cache.allocate(num_neighbours) as others:
            lengths = rng.integers(1, 60, num_neighbours)
            chunks = [
                SequenceChunk(rng.integers(0, 49152, n).tolist(), 0, [page], True)
                for n, page in zip(lengths, others.pages, strict=True)
            ]
            chunks.insert(
                num_neighbours // 2, SequenceChunk([tokens[199]], 199, crowded.pages, True)
            )
            logits = model.forward(chunks, cache)
        assert torch.equal(expected, logits[num_neighbours // 2])


def test_reused_prefix_pages_change_no_bit(model: CausalModel, tokens: list[int]) -> None:
    """Pages copied as bytes into another cache are as good as computed there."""
    here, there = model.new_cache(3), model.new_cache(3)
    with here.allocate(3) as source, there.allocate(3) as target:
        expected = run_in_chunks(model, here, tokens, source.pages, [NUM_TOKENS])
        for a, b in zip(source.pages[:2], target.pages[:2], strict=True):
            there.page_bytes_view(b).copy_(here.page_bytes_view(a))
        rest = SequenceChunk(tokens[256:], 256, target.pages, True)
        assert torch.equal(expected, model.forward([rest], there)[0])


def test_large_batches_change_no_bit(model: CausalModel) -> None:
    """More rows than one matrix product takes."""
    tokens = np.random.default_rng(3).integers(0, model.vocab_size, 1100).tolist()
    cache = model.new_cache(18)
    with cache.allocate(9) as whole, cache.allocate(9) as cut:
        expected = run_in_chunks(model, cache, tokens, whole.pages, [1100])
        assert torch.equal(expected, run_in_chunks(model, cache, tokens, cut.pages, [300]))


def test_the_machine_check_agrees(model: CausalModel) -> None:
    assert is_exact(model)


def test_the_machine_check_notices(model: CausalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """With products whose rows depend on the batch, it says so."""
    exact_call = Linear.__call__

    def sloppy(self: Linear, rows: torch.Tensor) -> torch.Tensor:
        return exact_call(self, rows) * (1.0 if len(rows) > 8 else 1.01)

    monkeypatch.setattr(Linear, "__call__", sloppy)
    assert not is_exact(model)
