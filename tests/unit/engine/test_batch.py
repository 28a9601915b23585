"""A chunk that contradicts itself is refused before anything is computed."""

from __future__ import annotations

import pytest
import torch
from rorqual_engine.batch import SequenceChunk, lay_out
from rorqual_engine.errors import BadChunk
from rorqual_engine.kv import PagedKvCache, uniform_layout
from rorqual_engine.models import CausalModel

CACHE = PagedKvCache(uniform_layout(1, 4), 4)


@pytest.mark.parametrize(
    "chunk",
    [
        SequenceChunk([], 0, [0]),
        SequenceChunk([1], -1, [0]),
        SequenceChunk([1], 128, [0]),
        SequenceChunk([1] * 129, 0, [0]),
        SequenceChunk([50], 0, [0]),
        SequenceChunk([-1], 0, [0]),
        SequenceChunk([1], 0, [4]),
        SequenceChunk([1], 300, [0, 1, 2]),
    ],
)
def test_bad_chunks_are_refused(chunk: SequenceChunk) -> None:
    with pytest.raises(BadChunk):
        lay_out([chunk], CACHE, vocab_size=50, max_context_tokens=300)


def test_rows_follow_each_other() -> None:
    chunks = [
        SequenceChunk([5, 6, 7], 10, [2], wants_logits=True),
        SequenceChunk([8], 130, [0, 1]),
        SequenceChunk([9, 9], 0, [3], wants_logits=True),
    ]
    batch = lay_out(chunks, CACHE, vocab_size=50, max_context_tokens=300)
    assert batch.token_ids.tolist() == [5, 6, 7, 8, 9, 9]
    assert batch.positions.tolist() == [10, 11, 12, 130, 0, 1]
    assert batch.row_starts.tolist() == [0, 3, 4, 6]
    assert batch.page_starts.tolist() == [0, 1, 3, 4]
    assert batch.logits_rows.tolist() == [2, 5]


def test_every_row_of_some_chunks_is_wanted() -> None:
    chunks = [
        SequenceChunk([5, 6, 7], 10, [2], wants_logits=True),
        SequenceChunk([8, 8], 128, [0, 1], wants_logits=True, all_logits=True),
        SequenceChunk([9, 9], 0, [3], all_logits=True),
        SequenceChunk([4], 0, [3], wants_logits=True, all_logits=True),
    ]
    batch = lay_out(chunks, CACHE, vocab_size=50, max_context_tokens=300)
    assert batch.logits_rows.tolist() == [2, 3, 4, 7]


def test_chunks_without_wanted_logits_give_none(tiny: CausalModel) -> None:
    cache = tiny.new_cache(1)
    assert tiny.forward([SequenceChunk([1, 2], 0, [0])], cache).shape == (0, tiny.vocab_size)


def test_cache_of_another_model_is_refused(tiny: CausalModel) -> None:
    with pytest.raises(BadChunk):
        tiny.forward([SequenceChunk([1], 0, [0])], CACHE)


def test_logits_come_in_order_of_chunks(tiny: CausalModel) -> None:
    cache = tiny.new_cache(2)
    first, second = SequenceChunk([1, 2], 0, [0], True), SequenceChunk([3], 0, [1], True)
    both = tiny.forward([first, second], cache)
    assert both.dtype in (torch.float32, torch.bfloat16)
    assert torch.equal(both[1], tiny.forward([second], cache)[0])
