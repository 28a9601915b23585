"""Late layers of a prompt: they run once, at its end, on the last window of rows only.

Until then the streams of the last rows wait in a ring of the slot, so the result does not depend
on how the prompt was cut into chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from rorqual_engine.batch import SequenceChunk
from rorqual_engine.models.deepseek.layer import Streams
from rorqual_engine.models.deepseek.state import KvViews
from rorqual_engine.models.deepseek.step import ChunkRows, Rows


@dataclass(frozen=True)
class LateSpan:
    """The late rows of one chunk."""

    source: ChunkRows
    """The chunk as it runs through the layers before."""
    target: ChunkRows
    """Its late rows; they may begin before the chunk."""
    wanted: range
    """Of the late rows of all spans, those whose logits are wanted."""


def late_spans(
    chunks: Sequence[SequenceChunk], rows: Rows, window: int
) -> tuple[LateSpan, ...] | None:
    """Late rows of every chunk that has some; None = exactly the rows of the pass."""
    if not any(chunk.defers_late for chunk in chunks):
        return None
    spans: list[LateSpan] = []
    first = 0
    for given, source in zip(chunks, rows.chunks, strict=True):
        if given.defers_late and not (given.wants_logits or given.ends_prompt):
            continue
        target = replace(source, first=first)
        if given.defers_late:
            begin = max(source.end - window, source.floor)
            target = replace(target, count=source.end - begin, start=begin, floor=begin)
        last = first + target.count
        wanted = range(first if given.all_logits else last - 1, last)
        spans.append(LateSpan(source, target, wanted if given.wants_logits else range(0)))
        first = last
    return tuple(spans)


def gather(
    spans: Sequence[LateSpan], streams: Streams, rows: Rows, views: KvViews, image_token_id: int
) -> tuple[Rows, Streams]:
    """The late rows; those of earlier chunks from where they wait. image_token_id: -1 = none."""
    ids, positions = [rows.token_ids[:0]], [rows.positions[:0]]
    values, weights = [streams.values[:0]], [streams.pre[:0]]
    for span in spans:
        source, target = span.source, span.target
        held = torch.arange(
            target.start, max(target.start, source.start), device=rows.positions.device
        )
        here = slice(source.first + max(0, target.start - source.start), source.rows.stop)
        for parts, ring, new in (
            (ids, views.ids, rows.token_ids),
            (values, views.streams, streams.values),
            (weights, views.weights, streams.pre),
        ):
            parts += [ring[source.slot][held % ring.shape[1]], new[here]]
        positions.append(torch.arange(target.start, target.end, device=held.device))
    token_ids = torch.cat(ids)
    late_rows = Rows(
        token_ids,
        torch.cat(positions),
        None if image_token_id < 0 else token_ids == image_token_id,
        tuple(span.target for span in spans),
    )
    return late_rows, Streams(torch.cat(values), torch.cat(weights))
