"""Attention over a window, chosen entries and a sink, one KV head; and the rotation around it."""

from __future__ import annotations

import torch

from rorqual_engine.ref.entries import gather_entries
from rorqual_engine.ref.places import RowPlaces

_BLOCK_VALUES = 1 << 23
"""Gathered key values at once; more rows are cut."""


def rotate_pairs(
    rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, back: bool = False
) -> torch.Tensor:
    """A copy of rows [T, H, dim] whose last 2 * pairs values are turned in pairs (2i, 2i + 1).

    cos, sin: fp32 [T, pairs], 2 * pairs <= dim; back: by the negative angle.
    Computed in fp32, one rounding to the dtype of rows.
    """
    pairs = cos.shape[-1]
    kept, turned = rows[..., : rows.shape[-1] - 2 * pairs], rows[..., rows.shape[-1] - 2 * pairs :]
    even, odd = turned[..., 0::2].float(), turned[..., 1::2].float()
    cos, sin = cos[:, None], (-sin if back else sin)[:, None]
    both = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    return torch.cat((kept, both.to(rows.dtype)), dim=-1)


def attend_entries(
    query: torch.Tensor,
    fresh: torch.Tensor,
    ring: torch.Tensor,
    entries: torch.Tensor | None,
    selection: torch.Tensor | None,
    sinks: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    places: RowPlaces,
    *,
    window: int,
) -> torch.Tensor:
    """[T, H, d] in query's dtype: what each row reads, turned back by its own position.

    query: [T, H, d], rotated; fresh: [T, d], the rows' own window KV, rotated, keys and values
    ring: [slots, ring rows, d] with ring rows >= window - 1; position p lies at p % ring rows.
        Positions from a sequence's start on are read from fresh, earlier ones from its ring, so
        the ring is written (write_window) AFTER this call.
    entries: [pages, per_page, d], dim contiguous; None = window only
    selection: int32 or int64 [T, k] entry numbers, -1 = none, anywhere; None exactly if entries is
    sinks: fp32 [H], one more logit a head that contributes no value
    cos, sin: fp32 [T, pairs]

    Row t reads window positions max(0, t - window + 1, floor) .. t. Softmax in fp32, scale
    d ** -0.5. What is not read may hold anything, NaN as well. Results of a row do not depend on
    other rows. Nothing is written; the result aliases nothing.
    """
    num_keys = window + (0 if selection is None else selection.shape[1])
    step = max(1, _BLOCK_VALUES // (num_keys * query.shape[-1]))
    outputs = [query.new_empty((0, *query.shape[1:]), dtype=torch.float32)]
    for at in range(0, len(query), step):
        rows = slice(at, at + step)
        keys, is_seen = _window_keys(fresh, ring, places, window, rows)
        if entries is not None and selection is not None:
            chosen = gather_entries(entries, selection[rows], places.part(rows))
            keys = torch.cat([keys, chosen.float()], dim=1)
            is_seen = torch.cat([is_seen, selection[rows] >= 0], dim=1)
        outputs.append(_attend(query[rows].float(), keys, is_seen, sinks))
    return rotate_pairs(torch.cat(outputs), cos, sin, back=True).to(query.dtype)


def _window_keys(
    fresh: torch.Tensor, ring: torch.Tensor, places: RowPlaces, window: int, rows: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """(fp32 [n, window, d], bool [n, window]), oldest first."""
    sequences, positions = places.sequences[rows].long(), places.positions[rows].long()
    back = torch.arange(window - 1, -1, -1, device=fresh.device)
    wanted = positions[:, None] - back
    is_seen = wanted >= places.floors[sequences].long().clamp_min(0)[:, None]
    start = places.starts[sequences].long()[:, None]
    row = places.first_rows[sequences].long()[:, None] + wanted - start
    slots = places.slots[sequences].long()[:, None].expand_as(wanted)
    old = ring[slots, wanted % ring.shape[1]]
    new = fresh[row.clamp(0, len(fresh) - 1)]
    keys = torch.where((wanted >= start)[:, :, None], new, old).float()
    return keys, is_seen


def _attend(
    query: torch.Tensor, keys: torch.Tensor, is_seen: torch.Tensor, sinks: torch.Tensor
) -> torch.Tensor:
    """query: [n, H, d]; keys: [n, k, d]; is_seen: [n, k]; sinks: [H]."""
    keys = keys.masked_fill(~is_seen[:, :, None], 0)
    scores = torch.einsum("nhd,nkd->nhk", query, keys) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~is_seen[:, None, :], float("-inf"))
    sink = sinks[None, :, None].expand(len(query), -1, 1)
    weights = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
    return torch.einsum("nhk,nkd->nhd", weights, keys)
