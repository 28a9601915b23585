"""What one forward pass runs: any mix of prefill chunks and decode rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from rorqual_engine.errors import BadChunk
from rorqual_engine.kv import PAGE_TOKENS, PagedKvCache

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ImageRows:
    """Embeddings of some rows of one chunk.

    rows: [k] within the chunk, ascending; values: [k, D].
    """

    rows: Int64Array
    values: torch.Tensor


@dataclass
class SequenceChunk:
    """Consecutive tokens of one sequence; their KV is written, earlier KV is read.

    A sequence has at most one chunk in a batch, and no two chunks write to the same page; pages
    that both only read may be shared.
    """

    token_ids: Sequence[int] | npt.NDArray[np.integer]
    """The rows to run, one a token."""
    start: int
    """Absolute position of the first row; positions before it have their KV in pages already."""
    pages: Sequence[int]
    """The sequence's pages from position 0 on, at least up to its last row."""
    wants_logits: bool = False
    """The logits of the last row are returned."""
    window: int | None = None
    """The sequence's window slot, for models that have windows."""
    window_floor: int = 0
    """No window key before this position is read: where a replay began."""
    num_stored: int = 0
    """Rows before this position are replayed: their Block KV is in the pages and stays as it is."""
    defers_late: bool = False
    """A prompt's chunk: late layers wait for the one that wants logits or ends the prompt, and run
    on the last window of rows only then. False: every row runs through every layer."""
    embeddings: ImageRows | None = None
    """Rows whose embedding comes from images instead of the table."""
    previous_ids: Sequence[int] = ()
    """The last ids before start, where a replay begins (start = window_floor > 0): as many as the
    model's num_previous_ids, or all there are."""
    ends_prompt: bool = False
    """Rows behind this chunk are an answer's: no prompt that defers goes on there."""
    all_logits: bool = False
    """With wants_logits: the logits of every row are returned, in their order; not for rows that
    defer."""


@dataclass(frozen=True)
class Batch:
    """Chunks laid out row after row. C chunks, T rows, W wanted logits."""

    token_ids: Int64Array
    """[T]"""
    positions: Int64Array
    """[T] absolute"""
    row_starts: Int32Array
    """[C + 1] rows of chunk c are row_starts[c] .. row_starts[c + 1]"""
    starts: Int32Array
    """[C] absolute position of each chunk's first row"""
    pages: Int32Array
    """All chunks' pages behind each other"""
    page_starts: Int32Array
    """[C + 1] into pages"""
    logits_rows: Int64Array
    """[W] rows whose logits are wanted, in order of chunks"""

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @property
    def num_chunks(self) -> int:
        return len(self.starts)


def lay_out(
    chunks: Sequence[SequenceChunk],
    cache: PagedKvCache,
    *,
    vocab_size: int,
    max_context_tokens: int,
) -> Batch:
    """The batch of these chunks. Raises: BadChunk."""
    if not chunks:
        raise BadChunk("a forward pass needs at least one chunk")
    lengths = np.array([len(chunk.token_ids) for chunk in chunks], dtype=np.int64)
    starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
    num_pages = np.array([len(chunk.pages) for chunk in chunks], dtype=np.int64)
    token_ids = _token_row(chunks)
    pages = np.fromiter(chain.from_iterable(chunk.pages for chunk in chunks), dtype=np.int32)
    _check_chunks(lengths, starts, num_pages, max_context_tokens)
    _check_range("token id", token_ids, vocab_size)
    _check_range("page", pages, cache.num_pages)
    row_starts = _offsets(lengths)
    within = np.arange(row_starts[-1], dtype=np.int64) - np.repeat(row_starts[:-1], lengths)
    return Batch(
        token_ids=token_ids,
        positions=within + np.repeat(starts, lengths),
        row_starts=row_starts,
        starts=starts.astype(np.int32),
        pages=pages,
        page_starts=_offsets(num_pages),
        logits_rows=_logits_rows(chunks, row_starts),
    )


def _logits_rows(chunks: Sequence[SequenceChunk], row_starts: Int32Array) -> Int64Array:
    wants = np.array([chunk.wants_logits for chunk in chunks], dtype=bool)
    lasts: Int64Array = row_starts[1:][wants].astype(np.int64)
    if not any(chunk.all_logits for chunk in chunks):
        found: Int64Array = lasts - 1
        return found
    every = np.array([chunk.all_logits for chunk in chunks], dtype=bool)[wants]
    firsts = np.where(every, row_starts[:-1][wants], lasts - 1)
    parts = [np.arange(first, last) for first, last in zip(firsts, lasts, strict=True)]
    return np.concatenate([lasts[:0], *parts]).astype(np.int64)


def _token_row(chunks: Sequence[SequenceChunk]) -> Int64Array:
    if len(chunks) == 1:
        return np.array(chunks[0].token_ids, dtype=np.int64)
    return np.fromiter(chain.from_iterable(chunk.token_ids for chunk in chunks), dtype=np.int64)


def _offsets(lengths: Int64Array) -> Int32Array:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _check_chunks(
    lengths: Int64Array, starts: Int64Array, num_pages: Int64Array, max_context_tokens: int
) -> None:
    ends = starts + lengths
    if lengths.min() < 1 or starts.min() < 0:
        raise BadChunk("a chunk needs at least one token and a start >= 0")
    if ends.max() > max_context_tokens:
        raise BadChunk(f"position {ends.max()} is past the context of {max_context_tokens} tokens")
    if (num_pages * PAGE_TOKENS < ends).any():
        worst = int((ends - num_pages * PAGE_TOKENS).argmax())
        raise BadChunk(f"{num_pages[worst]} pages cannot hold {ends[worst]} tokens")


def _check_range(what: str, values: npt.NDArray[np.integer], limit: int) -> None:
    if values.min() < 0 or values.max() >= limit:
        raise BadChunk(f"{what} outside 0..{limit - 1}")
