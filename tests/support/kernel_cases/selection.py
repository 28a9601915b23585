"""Index scores and the choice among them."""

from __future__ import annotations

import torch

from tests.support.kernel_cases.harness import (
    PAGE,
    Kernels,
    case,
    check_close,
    check_equal,
)


@case
def scores_equal_their_twin(kernels: Kernels) -> None:
    for ratio, heads, dtype in ((1, 3, torch.float32), (2, 20, torch.bfloat16)):
        places = kernels.places([(25, 3), (0, 2), (7, 1)])
        keys = kernels.paged(PAGE // ratio, 20, dtype)
        if ratio == 2:  # dimension by dimension in a page
            keys = kernels.paged(20, PAGE // ratio, dtype).transpose(1, 2)
        queries = kernels.randn(6, heads, 20, dtype=dtype)
        weights = kernels.randn(6, heads)
        sizes = {"ratio": ratio, "num_entries": 28 // ratio}
        blocks = torch.tensor([[0, 2, 3], [1, 2, -1], [0, 1, 6], [0, -1, -1], [-1] * 3, [0, 1, 9]])
        for extra in ({}, {"blocks": blocks.to(kernels.device), "block_entries": 4}):
            given = (queries, weights, keys, places)
            found = kernels("index_scores")(*given, **sizes, **extra)
            expected = kernels.twin("index_scores")(*given, **sizes, **extra)
            check_equal(found.isinf(), expected.isinf())
            check_close(found.nan_to_num(neginf=0), expected.nan_to_num(neginf=0))


def _tied_scores(kernels: Kernels, columns: int) -> torch.Tensor:
    scores = torch.randint(-2, 3, (7, columns)).float()
    scores[0] = float("-inf")
    scores[1, columns // 3 :] = float("-inf")
    scores[2] = 0.0
    scores[2, ::2] = -0.0
    scores[3] = torch.randn(columns) * 1e-40
    scores[4] = torch.randn(columns) * 1e30
    return scores.to(kernels.device)


@case
def selection_is_exact_with_ties_to_the_lowest(kernels: Kernels) -> None:
    for columns, counts in ((1, (1,)), (53, (5, 17, 60))):
        scores = _tied_scores(kernels, columns)
        for top_k in counts:
            found = kernels("best_entries")(scores, top_k)
            check_equal(found, kernels.twin("best_entries")(scores, top_k))
    check_equal(found[2, :3].cpu(), torch.tensor([0, 1, 2]))
    assert kernels("best_entries")(scores[:, :0], 4).shape == (7, 0)
    assert kernels("best_entries")(scores[:0], 4).shape == (0, 4)


@case
def long_rows_are_selected_from_exactly(kernels: Kernels) -> None:
    """More columns than a program takes at once."""
    scores = torch.randint(0, 50, (2, 2100)).float().to(kernels.device)
    for top_k in (1500,):
        found = kernels("best_entries")(scores, top_k)
        check_equal(found, kernels.twin("best_entries")(scores, top_k))


@case
def candidate_blocks_bound_the_selection(kernels: Kernels) -> None:
    scores = _tied_scores(kernels, 53)
    for count in (2, 20):
        blocks = kernels("best_blocks")(scores, count, block_entries=8)
        check_equal(blocks, kernels.twin("best_blocks")(scores, count, block_entries=8))
        columns = torch.where(blocks < 0, 0, blocks)[:, :, None] * 8
        columns = (columns + torch.arange(8, device=kernels.device)).flatten(1)
        inside = scores.gather(1, columns.clamp_max(52))
        is_none = (blocks < 0).repeat_interleave(8, 1) | (columns > 52)
        inside = inside.masked_fill(is_none, float("-inf"))
        found = kernels("best_entries")(inside, 6, blocks=blocks, block_entries=8)
        outside = scores.masked_fill(~_is_inside(blocks, 53), float("-inf"))
        expected = kernels.twin("best_entries")(outside, found.shape[1])
        check_equal(found, expected)


def _is_inside(blocks: torch.Tensor, columns: int) -> torch.Tensor:
    of_column = torch.arange(columns, device=blocks.device) // 8
    return (of_column[None, :, None] == blocks[:, None, :]).any(-1)
