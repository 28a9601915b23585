"""The indexer: which of the visible entries a row attends to."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.support.deepseek_reference.compression import Entries, visible
from tests.support.deepseek_reference.formats import round_index
from tests.support.deepseek_reference.rotation import rotate
from tests.support.deepseek_reference.shape import Role, Shape
from tests.support.deepseek_reference.tensors import Tensors


@dataclass
class Choice:
    """chosen, scores [T, E]; margin [T]: how far the last chosen score is from the next one."""

    chosen: torch.Tensor
    scores: torch.Tensor
    margin: torch.Tensor


def choose(
    x: torch.Tensor,
    latent_query: torch.Tensor,
    entries: Entries,
    allowed: torch.Tensor | None,
    tensors: Tensors,
    role: Role,
    shape: Shape,
) -> Choice:
    """The best visible entries of every row, among `allowed` [T, E] where it is given."""
    scores = _scores(x, latent_query, entries, tensors, shape)
    may = visible(len(x), len(entries.keys), role.ratio)
    if allowed is not None:
        may = may & allowed
    return Choice(best(scores, may, shape.index_topk), scores, _margin(scores, may, shape))


def _scores(
    x: torch.Tensor, latent_query: torch.Tensor, entries: Entries, tensors: Tensors, shape: Shape
) -> torch.Tensor:
    query = (latent_query @ tensors["wq_b.weight"].T).unflatten(-1, (-1, shape.index_dim))
    query = rotate(query, torch.arange(len(x)), shape.compress)
    if shape.quantized:
        query = round_index(query)
    head_weights = x @ tensors["weights_proj.weight"].T * shape.index_heads**-0.5
    assert entries.index_keys is not None
    products = torch.einsum("thd,ed->the", query, entries.index_keys).relu()
    return torch.einsum("th,the->te", head_weights, products) * shape.index_dim**-0.5


def best(scores: torch.Tensor, may: torch.Tensor, count: int) -> torch.Tensor:
    """Mask of the `count` highest scores of every row among `may`; equal ones by lowest index."""
    order = torch.sort(
        scores.masked_fill(~may, -torch.inf), dim=-1, descending=True, stable=True
    ).indices
    mask = torch.zeros_like(may).scatter(1, order[:, :count], value=True)
    return mask & may


def candidate_blocks(
    scores: torch.Tensor, may: torch.Tensor, num_blocks: int, block: int
) -> torch.Tensor:
    """[T, E]: entries in the blocks with the highest scores; a row's newest block is among them."""
    rows, count = scores.shape
    padded = -(-count // block) * block
    masked = scores.new_full((rows, padded), -torch.inf)
    masked[:, :count] = scores.masked_fill(~may, -torch.inf)
    by_block = masked.unflatten(1, (-1, block)).amax(-1)
    seen = by_block > -torch.inf
    num_visible = may.sum(-1)
    for row in range(rows):
        if num_visible[row] > 0:
            by_block[row, (num_visible[row] - 1) // block] = torch.inf
    return best(by_block, seen, num_blocks).repeat_interleave(block, 1)[:, :count]


def _margin(scores: torch.Tensor, may: torch.Tensor, shape: Shape) -> torch.Tensor:
    ordered = scores.masked_fill(~may, -torch.inf).sort(-1, descending=True).values
    k = shape.index_topk
    if ordered.shape[1] <= k:
        return scores.new_full((len(scores),), torch.inf)
    margin = ordered[:, k - 1] - ordered[:, k]
    return torch.where(may.sum(-1) > k, margin, torch.inf)
