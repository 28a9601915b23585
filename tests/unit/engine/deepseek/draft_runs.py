"""Sequences with drafts in the engine, and what the reference guesses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import PagedKvCache, PageLease
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.drafts import Anchor, Drafts
from rorqual_engine.models.options import LoadOptions

from tests.support.deepseek_reference import DraftReference, Rule, TextReference
from tests.support.engine_runs import cut


def load_with_drafts(directory: Path, dtype: str) -> DeepseekModel:
    loaded = load_model(directory, dtype=dtype, options=LoadOptions(drafts=True))
    assert isinstance(loaded, DeepseekModel)
    return loaded


@dataclass
class Drafting:
    """ids of which the first `length` are in the state."""

    model: DeepseekModel
    cache: PagedKvCache
    lease: PageLease
    ids: list[int] = field(default_factory=list)
    length: int = 0

    def chunk(self, ids: Sequence[int], **options: Any) -> SequenceChunk:
        return SequenceChunk(
            ids, self.length, self.lease.pages, window=self.lease.window, **options
        )

    def prefill(self, ids: Sequence[int], sizes: Sequence[int] = (1000,)) -> torch.Tensor:
        """As a prompt, late layers last; logits of the last token."""
        logits = torch.empty(0)
        for start, end in cut(len(ids), sizes):
            is_last = end == len(ids)
            chunk = self.chunk(ids[start:end], wants_logits=is_last, defers_late=True)
            logits = self.model.forward([chunk], self.cache)
            self.length += end - start
        self.ids = list(ids)
        return logits[0]

    def step(self, token: int) -> torch.Tensor:
        logits = self.model.forward([self.chunk([token], wants_logits=True)], self.cache)
        self.ids.append(token)
        self.length += 1
        return logits[0]

    def verify(self, rows: Sequence[int]) -> torch.Tensor:
        """Logits of every row; nothing counts as run yet."""
        chunk = self.chunk(rows, wants_logits=True, all_logits=True)
        return self.model.forward([chunk], self.cache)

    def anchor(self, token: int) -> Anchor:
        assert self.lease.window is not None
        return Anchor(token, self.length, self.lease.window)

    def draft(self, token: int) -> Drafts:
        return self.model.draft([self.anchor(token)], self.cache)

    def saved(self) -> torch.Tensor:
        assert self.lease.window is not None
        return self.model.save_window(self.cache, self.lease.window, self.length)


@contextmanager
def sequence(model: DeepseekModel, cache: PagedKvCache | None = None) -> Iterator[Drafting]:
    """In a cache full of NaN."""
    if cache is None:
        cache = dirty_cache(model)
    with cache.allocate(3) as lease:
        yield Drafting(model, cache, lease)


def dirty_cache(model: DeepseekModel, num_pages: int = 12) -> PagedKvCache:
    cache = model.new_cache(num_pages)
    cache.pages.fill_(255)
    cache.windows.fill_(255)
    return cache


def expected_drafts(target: TextReference, ids: Sequence[int], anchor: int, rule: Rule) -> Drafts:
    reference = DraftReference(target)
    trace = target(ids, rule)
    block = reference.block(reference.context(trace), anchor, len(ids), rule.late_floor)
    tokens = reference.greedy(block, anchor)
    before = [anchor, *tokens[:-1]]
    logits = [reference.corrected(block, k, token) for k, token in enumerate(before)]
    sure = [reference.confidence(block, k, token) for k, token in enumerate(before)]
    return Drafts(
        torch.tensor([tokens]), torch.stack(logits)[None], torch.empty(0), torch.stack(sure)[None]
    )


def assert_close(found: Drafts, expected: Drafts) -> None:
    torch.testing.assert_close(found.logits, expected.logits.float(), rtol=0, atol=1e-4)
    torch.testing.assert_close(found.confidences, expected.confidences.float(), rtol=0, atol=1e-5)
    assert found.tokens.tolist() == expected.tokens.tolist()
