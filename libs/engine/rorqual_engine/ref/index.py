"""Choosing entries: scores of a row's index queries, the best of them, ties to the lowest."""

from __future__ import annotations

import torch

from rorqual_engine.ref.entries import gather_entries
from rorqual_engine.ref.places import RowPlaces

_BLOCK_VALUES = 1 << 24
"""Gathered key values at once; more rows are cut."""


def index_scores(
    queries: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    places: RowPlaces,
    *,
    ratio: int,
    num_entries: int,
    blocks: torch.Tensor | None = None,
    block_entries: int = 8,
) -> torch.Tensor:
    """fp32 [T, columns]: sum over heads of weight * relu(query . key) * dim ** -0.5.

    queries: [T, heads, dim]; weights: fp32 [T, heads]
    keys: [pages, per_page, dim], any strides, of all sequences
    ratio: entry w is complete, and visible, at positions from ratio * (w + 1) - 1 on
    num_entries: columns; at least as many as any row sees
    blocks: int64 [T, b] ascending, -1 = none; column c then stands for entry
        blocks[t, c // block_entries] * block_entries + c % block_entries, and there are
        b * block_entries columns whatever num_entries is. None: column c is entry c.

    -inf in columns whose entry is not visible to the row. Rows do not depend on each other.
    """
    numbers = column_entries(len(queries), num_entries, blocks, block_entries, queries.device)
    visible = (places.positions.long() + 1) // ratio
    seen = torch.where(numbers < visible[:, None], numbers, -1)
    step = max(1, _BLOCK_VALUES // max(1, seen.shape[1] * queries.shape[2]))
    scores = [queries.new_empty((0, seen.shape[1]), dtype=torch.float32)]
    for at in range(0, len(queries), step):
        rows = slice(at, at + step)
        found = gather_entries(keys, seen[rows], places.part(rows)).float()
        products = torch.einsum("thd,ted->the", queries[rows].float(), found).relu()
        scores.append(torch.einsum("the,th->te", products, weights[rows]))
    whole: torch.Tensor = torch.cat(scores) * queries.shape[-1] ** -0.5
    return whole.masked_fill(seen < 0, float("-inf"))


def column_entries(
    num_rows: int,
    num_entries: int,
    blocks: torch.Tensor | None,
    block_entries: int,
    device: torch.device,
) -> torch.Tensor:
    """int64 [T, columns]: the entry each column of index_scores stands for, -1 = none."""
    if blocks is None:
        return torch.arange(num_entries, device=device).expand(num_rows, -1)
    within = torch.arange(block_entries, device=device)
    numbers = blocks.long()[:, :, None] * block_entries + within
    return torch.where(blocks[:, :, None] < 0, -1, numbers).flatten(1)


def best_entries(
    scores: torch.Tensor,
    top_k: int,
    *,
    blocks: torch.Tensor | None = None,
    block_entries: int = 8,
) -> torch.Tensor:
    """int64 [T, min(top_k, columns)]: the best columns' entries, ascending, then -1.

    Exactly: by score descending, equal scores (0 and -0 are equal) by column ascending; columns
    of -inf are never chosen. scores: fp32 [T, columns] without NaN; blocks: as index_scores.
    """
    order = scores.sort(dim=-1, descending=True, stable=True)
    chosen, is_real = order.indices[:, :top_k], order.values[:, :top_k] > float("-inf")
    past_end = scores.shape[1]
    ascending = torch.where(is_real, chosen, past_end).sort(-1).values
    numbers = column_entries(len(scores), past_end, blocks, block_entries, scores.device)
    named = torch.nn.functional.pad(numbers, (0, 1), value=-1)
    return named.gather(1, ascending)


def best_blocks(scores: torch.Tensor, num_blocks: int, *, block_entries: int) -> torch.Tensor:
    """int64 [T, min(num_blocks, blocks)]: the blocks with the best entries, ascending, then -1.

    A block's score is its best entry's; the newest block with a visible entry is always kept;
    ties to the lowest. scores: fp32 [T, entries], -inf = not visible.
    """
    return best_entries(block_peaks(scores, block_entries=block_entries), num_blocks)


def block_peaks(scores: torch.Tensor, *, block_entries: int) -> torch.Tensor:
    """fp32 [T, blocks]: each block's best score, +inf for the newest with a visible entry."""
    padding = -scores.shape[1] % block_entries
    padded = torch.nn.functional.pad(scores, (0, padding), value=float("-inf"))
    peaks = padded.view(len(scores), -1, block_entries).amax(-1)
    if not peaks.shape[1]:
        return peaks
    numbers = torch.arange(peaks.shape[1], device=scores.device)
    newest = torch.where(peaks > float("-inf"), numbers, -1).amax(-1, keepdim=True)
    return peaks.masked_fill(numbers[None, :] == newest, float("inf"))
