"""Attention over windows and entries, and rotation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from rorqual_engine.ref.places import RowPlaces

from tests.support.kernel_cases.harness import (
    NAN,
    PAGE,
    RING,
    Kernels,
    case,
    check_bits,
    check_close,
)


def _attention(
    kernels: Kernels,
    places: RowPlaces,
    dtype: torch.dtype = torch.float32,
    *,
    heads: int = 5,
    dim: int = 24,
    per_page: int = 4,
    num_chosen: int = 11,
) -> tuple[Any, ...]:
    rows = places.num_rows
    visible = (places.positions.long() + 1) * per_page // PAGE
    chosen = torch.stack([torch.randperm(20)[:num_chosen] for _ in range(rows)] or [])
    chosen = chosen.to(kernels.device)
    chosen = torch.where(chosen < visible[:, None], chosen, -1)
    angles = kernels.randn(rows, 4)
    return (
        kernels.randn(rows, heads, dim, dtype=dtype),
        kernels.randn(rows, dim, dtype=dtype),
        kernels.randn(6, RING, dim, dtype=dtype),
        kernels.paged(per_page, dim, dtype),
        chosen,
        kernels.randn(heads),
        angles.cos(),
        angles.sin(),
        places,
    )


@case
def attention_equals_its_twin(kernels: Kernels) -> None:
    shapes = [
        ([(37, 3), (0, 5), (20, 1)], [0, 0, 15], torch.float32, {}),
        ([(7, 2), (31, 1)], [8, 0], torch.bfloat16, {"heads": 17, "dim": 16, "per_page": 8}),
        ([(15, 2)], [0], torch.float32, {"heads": 1, "per_page": 1, "num_chosen": 1}),
        ([(8, 1)], [0], torch.float32, {"num_chosen": 0}),
    ]
    for sequences, floors, dtype, sizes in shapes:
        given = _attention(kernels, kernels.places(sequences, floors), dtype, **sizes)
        found = kernels("attend_entries")(*given, window=9)
        check_close(found, kernels.twin("attend_entries")(*given, window=9))


@case
def attention_reads_the_window_alone(kernels: Kernels) -> None:
    query, fresh, ring, _, _, *rest = _attention(kernels, kernels.places([(0, 3), (40, 2)]))
    given = (query, fresh, ring, None, None, *rest)
    for window in (1, 9, 16):
        found = kernels("attend_entries")(*given, window=window)
        check_close(found, kernels.twin("attend_entries")(*given, window=window))


@case
def attention_never_reads_what_is_not_visible(kernels: Kernels) -> None:
    """Not even where it is NaN: before the floor, behind the row, unchosen entries."""
    places = kernels.places([(20, 2)], [18])
    query, fresh, ring, entries, chosen, *rest = _attention(kernels, places)
    slot = int(places.slots[0])
    ring[:] = NAN
    ring[slot, 18 % RING] = ring[slot, 19 % RING] = 1
    entries[:] = NAN
    chosen[:] = -1
    found = kernels("attend_entries")(query, fresh, ring, entries, chosen, *rest, window=9)
    assert found.isfinite().all()
    one = places.part(slice(0, 1))
    later = torch.cat([fresh[:1], torch.full_like(fresh[1:], NAN)])
    again = kernels("attend_entries")(
        query[:1], later, ring, entries, chosen[:1], *rest[:3], one, window=9
    )
    check_bits(kernels, again, found[:1])


@case
def attention_of_no_rows_is_empty(kernels: Kernels) -> None:
    places = kernels.places([(3, 1)])
    query, fresh, ring, entries, chosen, sinks, cos, sin, _ = _attention(kernels, places)
    none = places.part(slice(0, 0))
    given = (query[:0], fresh[:0], ring, entries, chosen[:0], sinks, cos[:0], sin[:0], none)
    assert kernels("attend_entries")(*given, window=4).shape == (0, 5, 24)


@case
def rows_of_drafts_equal_rows_one_by_one(kernels: Kernels) -> None:
    """A sequence's rows in one pass, between other sequences, have the bits of single steps."""
    places = kernels.places([(3, 2), (13, 4), (9, 1)])
    given = _attention(kernels, places, torch.bfloat16)
    query, fresh, ring, entries, chosen, sinks, cos, sin, _ = given
    together = kernels("attend_entries")(*given, window=9)
    for row in range(2, 6):
        one = slice(row, row + 1)
        step = replace(
            places.part(one),
            first_rows=torch.zeros_like(places.first_rows),
            starts=torch.full_like(places.starts, 13 + row - 2),
        )
        found = kernels("attend_entries")(
            query[one], fresh[one], ring, entries, chosen[one], sinks, cos[one], sin[one], step,
            window=9,
        )  # fmt: skip
        check_bits(kernels, found[0], together[row])
        kernels("write_window")(ring, fresh[one], step)


@case
def rotation_turns_pairs_and_back(kernels: Kernels) -> None:
    for shape, dtype in (((3, 5, 24), torch.float32), ((2, 1, 8), torch.bfloat16)):
        rows, angles = kernels.randn(*shape, dtype=dtype), kernels.randn(shape[0], 4)
        found = kernels("rotate_pairs")(rows, angles.cos(), angles.sin())
        check_close(found, kernels.twin("rotate_pairs")(rows, angles.cos(), angles.sin()))
        back = kernels("rotate_pairs")(found, angles.cos(), angles.sin(), back=True)
        check_close(back, rows)
    assert kernels("rotate_pairs")(rows[:0], angles[:0], angles[:0]).shape == (0, 1, 8)
