"""Running token lists through a model in different cuts, for equality tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import PAGE_TOKENS, PagedKvCache
from rorqual_engine.models import CausalModel


def cut(num_tokens: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(start, end) of chunks whose sizes repeat in turn."""
    start = turn = 0
    while start < num_tokens:
        end = min(num_tokens, start + sizes[turn % len(sizes)])
        yield start, end
        start, turn = end, turn + 1


def run_in_chunks(
    model: CausalModel,
    cache: PagedKvCache,
    tokens: Sequence[int],
    pages: Sequence[int],
    sizes: Sequence[int],
) -> torch.Tensor:
    """Logits of the last token after running the tokens in chunks of these sizes."""
    logits = torch.empty(0)
    for start, end in cut(len(tokens), sizes):
        chunk = SequenceChunk(tokens[start:end], start, pages, wants_logits=True)
        logits = model.forward([chunk], cache)
    return logits[0]


def kv_bytes(
    model: CausalModel, cache: PagedKvCache, pages: Sequence[int], num_tokens: int
) -> bytes:
    """KV of the first num_tokens tokens, token-major, without the undefined rest of the page."""
    layers = len(model.kv_layout.layers)
    shape = model.config.shape  # type: ignore[attr-defined]
    half = (layers, shape.num_kv_heads)
    kept = []
    for number, page in enumerate(pages):
        count = min(PAGE_TOKENS, num_tokens - number * PAGE_TOKENS)
        if count <= 0:
            break
        typed = cache.page_bytes_view(page).view(model.dtype).view(layers, 2, -1)
        keys = typed[:, 0].view(*half, shape.head_dim, PAGE_TOKENS)[..., :count]
        values = typed[:, 1].view(*half, PAGE_TOKENS, shape.head_dim)[:, :, :count]
        kept += [keys.contiguous().flatten(), values.contiguous().flatten()]
    return torch.cat(kept).view(torch.uint8).numpy().tobytes()
