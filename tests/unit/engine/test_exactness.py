"""The same sequence gives the same bits however it is run (tiny models, several shapes)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.models import CausalModel, load_model

from tests.support.engine_runs import kv_bytes, run_in_chunks
from tests.support.tiny_llama import save_tiny_llama

NUM_TOKENS = 270
TOKENS = np.random.default_rng(0).integers(0, 512, NUM_TOKENS).tolist()


@settings(max_examples=12, deadline=None)
@given(sizes=st.lists(st.sampled_from([1, 2, 7, 31, 33, 64, 127, 128, 129]), min_size=1))
def test_any_chunking_gives_the_same_bits(tiny: CausalModel, sizes: list[int]) -> None:
    sizes = [*sizes, 50]
    cache = tiny.new_cache(6)
    with cache.allocate(3) as whole, cache.allocate(3) as cut:
        expected = run_in_chunks(tiny, cache, TOKENS, whole.pages, [NUM_TOKENS])
        assert torch.equal(expected, run_in_chunks(tiny, cache, TOKENS, cut.pages, sizes))
        assert kv_bytes(tiny, cache, whole.pages, NUM_TOKENS) == kv_bytes(
            tiny, cache, cut.pages, NUM_TOKENS
        )


def test_biases_and_odd_groups_keep_it(tmp_path: Path) -> None:
    save_tiny_llama(
        tmp_path, family="qwen2", num_attention_heads=5, num_key_value_heads=1, hidden_size=160
    )
    model = load_model(tmp_path)
    cache = model.new_cache(6)
    with cache.allocate(3) as whole, cache.allocate(3) as cut:
        expected = run_in_chunks(model, cache, TOKENS, whole.pages, [NUM_TOKENS])
        assert torch.equal(expected, run_in_chunks(model, cache, TOKENS, cut.pages, [1, 30]))


def test_thread_count_changes_no_bit(tiny: CausalModel) -> None:
    cache = tiny.new_cache(3)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            chunk = SequenceChunk(TOKENS, 0, [0, 1, 2], True)
            results.append(tiny.forward([chunk], cache).clone())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
