"""Compressed entries in pages and window KV in rings: reading and writing them."""

from __future__ import annotations

import torch

from rorqual_engine.ref.places import RowPlaces


def gather_entries(entries: torch.Tensor, numbers: torch.Tensor, places: RowPlaces) -> torch.Tensor:
    """A copy of each row's entries, [T, k, dim] contiguous, zeros where the number is -1.

    entries: [pages, per_page, dim], any strides but dim contiguous; entry w of a sequence lies in
        its page number w // per_page
    numbers: int32 or int64 [T, k], -1 = none
    """
    per_page = entries.shape[1]
    known = numbers.long().clamp_min(0)
    is_none = numbers < 0
    pages = places.pages_of(torch.where(is_none, 0, known // per_page))
    found = entries[pages, known % per_page]
    return found.masked_fill(is_none[:, :, None], 0)


def scatter_entries(
    entries: torch.Tensor,
    values: torch.Tensor,
    numbers: torch.Tensor,
    sequences: torch.Tensor,
    places: RowPlaces,
) -> None:
    """Writes entries to their pages, IN PLACE.

    entries: as gather_entries takes them; values: [n, dim] of the same dtype
    numbers, sequences: int32 [n]; number -1 = not to be written. No (sequence, number) twice.
    """
    is_kept = numbers >= 0
    kept, owner = numbers[is_kept].long(), sequences[is_kept].long()
    per_page = entries.shape[1]
    pages = places.pages[places.page_starts[owner].long() + kept // per_page].long()
    entries[pages, kept % per_page] = values[is_kept]


def write_window(ring: torch.Tensor, values: torch.Tensor, places: RowPlaces) -> None:
    """Puts every row into its slot's ring at position % ring rows, IN PLACE; of rows that share a
    place the last of a sequence stays.

    ring: [slots, ring rows, dim], dim contiguous; values: [T, dim] of the same dtype
    """
    num_places = ring.shape[1]
    is_kept = _is_within(places, num_places)
    slots = places.slots[places.sequences.long()].long()[is_kept]
    ring[slots, places.positions.long()[is_kept] % num_places] = values[is_kept]


def _is_within(places: RowPlaces, num_places: int) -> torch.Tensor:
    """Rows not followed by another row of their sequence num_places later."""
    counts = torch.bincount(places.sequences.long(), minlength=len(places.starts))
    ends = places.starts.long() + counts
    return places.positions.long() + num_places >= ends[places.sequences.long()]
