"""Experts of a mixture layer over rows grouped by expert."""

from __future__ import annotations

import torch
from torch.nn import functional


def run_experts(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    clamp: float,
) -> torch.Tensor:
    """fp32 [T, D]: sum over slots s, in order, of weights[t, s] * expert(x[t]).

    x: [T, D]; experts: int32 or int64 [T, slots], -1 = nobody's here; weights: fp32 [T, slots]
    gate_up: [E, D, 2 * inner], gate first; down: [E, inner, D]; x's dtype, any strides. A shared
        expert is one more expert that every row chooses.

    An expert is down(silu(min(gate, clamp)) * clamp(up, -clamp, clamp)), each product rounded to
    x's dtype. Rows do not depend on each other.
    """
    parts = x.new_zeros((*experts.shape, x.shape[1]), dtype=torch.float32)
    for number in torch.unique(experts[experts >= 0]).tolist():
        rows, slots = (experts == number).nonzero(as_tuple=True)
        gate, up = (x[rows] @ gate_up[number]).chunk(2, dim=-1)
        inner = functional.silu(gate.clamp(max=clamp)) * up.clamp(-clamp, clamp)
        parts[rows, slots] = (inner @ down[number]).float() * weights[rows, slots, None]
    total = x.new_zeros(x.shape, dtype=torch.float32)
    for slot in range(experts.shape[1]):
        total = total + parts[:, slot]
    return total


def group_rows(
    experts: torch.Tensor, num_experts: int, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(order int32 [items * block], item_experts int32 [items]): tiles of one expert each.

    order holds row * slots + slot, a tile's own in ascending order, -1 = empty place; an item of
    expert -1 is empty. items depends on the shape alone, so a device need not be waited for.
    experts: int32 or int64 [T, slots], -1 = none.
    """
    flat = experts.flatten().long()
    named = torch.where(flat < 0, num_experts, flat)
    order = named.argsort(stable=True)
    every = torch.zeros(num_experts + 1, dtype=torch.int64, device=flat.device)
    counts = every.scatter_add_(0, named, torch.ones_like(named))[:num_experts]
    tiles = (counts + block - 1) // block
    num_items = -(-len(flat) // block) + num_experts
    tile_ends = tiles.cumsum(0)
    items = torch.arange(num_items, device=flat.device)
    item_experts = torch.searchsorted(tile_ends, items, right=True)
    is_used = item_experts < num_experts
    known = torch.where(is_used, item_experts, 0)
    first_item = (tile_ends - tiles)[known]
    within = (items - first_item)[:, None] * block + torch.arange(block, device=flat.device)
    source = (counts.cumsum(0) - counts)[known][:, None] + within
    is_filled = is_used[:, None] & (within < counts[known][:, None])
    if not len(flat):
        places = torch.full_like(source, -1)
    else:
        places = torch.where(is_filled, order[source.clamp(0, len(flat) - 1)], -1)
    return places.flatten().int(), torch.where(is_used, item_experts, -1).int()
