"""Twins of ref/entries.py."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rorqual_engine.kernels.triton.places import check_rows, entry_offsets, next_power
from rorqual_engine.ref.places import RowPlaces

_BLOCK_ENTRIES = 16


@triton.jit(do_not_specialize=["num_numbers", "numbers_stride"])
def _gather(
    entries, numbers, target, sequences, pages, page_starts, num_numbers, numbers_stride,
    per_page, page_stride, row_stride, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = column < num_numbers
    number = tl.load(numbers + row.to(tl.int64) * numbers_stride + column, is_column, other=-1)
    is_known = number >= 0
    sequence = tl.load(sequences + row)
    source = entry_offsets(
        number, is_known, pages, page_starts, sequence, per_page, page_stride, row_stride
    )
    dim = tl.arange(0, BLOCK_D)
    mask = is_known[:, None] & (dim < DIM)[None, :]
    values = tl.load(entries + source[:, None] + dim[None, :], mask=mask, other=0.0)
    at = (row.to(tl.int64) * num_numbers + column)[:, None] * DIM + dim[None, :]
    tl.store(target + at, values, mask=is_column[:, None] & (dim < DIM)[None, :])


@triton.jit
def _scatter(
    entries, values, numbers, sequences, pages, page_starts, per_page, page_stride, row_stride,
    value_stride, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    number = tl.load(numbers + item)
    sequence = tl.load(sequences + item)
    is_known = number >= 0
    target = entry_offsets(
        number, is_known, pages, page_starts, sequence, per_page, page_stride, row_stride
    )
    dim = tl.arange(0, BLOCK_D)
    mask = dim < tl.where(is_known, DIM, 0)
    value = tl.load(values + item.to(tl.int64) * value_stride + dim, mask=mask, other=0.0)
    tl.store(entries + target + dim, value, mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def _write_window(
    ring, values, sequences, positions, slots, num_rows, num_places, slot_stride, place_stride,
    value_stride, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    sequence = tl.load(sequences + row)
    later = row + num_places
    is_kept = tl.load(sequences + later, mask=later < num_rows, other=-1) != sequence
    position = tl.load(positions + row)
    slot = tl.load(slots + sequence).to(tl.int64)
    place = (position % num_places).to(tl.int64)
    dim = tl.arange(0, BLOCK_D)
    mask = dim < tl.where(is_kept, DIM, 0)
    value = tl.load(values + row.to(tl.int64) * value_stride + dim, mask=mask, other=0.0)
    tl.store(ring + slot * slot_stride + place * place_stride + dim, value, mask=mask)


def gather_entries(entries: torch.Tensor, numbers: torch.Tensor, places: RowPlaces) -> torch.Tensor:
    check_rows(entries, numbers)
    num_rows, num_numbers = numbers.shape
    dim = entries.shape[2]
    target = entries.new_empty((num_rows, num_numbers, dim))
    if target.numel():
        _gather[(num_rows, triton.cdiv(num_numbers, _BLOCK_ENTRIES))](
            entries, numbers, target, places.sequences, places.pages, places.page_starts,
            num_numbers, numbers.stride(0), entries.shape[1], entries.stride(0),
            entries.stride(1), DIM=dim, BLOCK_D=next_power(dim), BLOCK_N=_BLOCK_ENTRIES,
        )  # fmt: skip
    return target


def scatter_entries(
    entries: torch.Tensor,
    values: torch.Tensor,
    numbers: torch.Tensor,
    sequences: torch.Tensor,
    places: RowPlaces,
) -> None:
    check_rows(entries, values)
    if len(values):
        _scatter[(len(values),)](
            entries, values, numbers, sequences, places.pages, places.page_starts,
            entries.shape[1], entries.stride(0), entries.stride(1), values.stride(0),
            DIM=entries.shape[2], BLOCK_D=next_power(entries.shape[2]),
        )  # fmt: skip


def write_window(ring: torch.Tensor, values: torch.Tensor, places: RowPlaces) -> None:
    check_rows(ring, values)
    if len(values):
        _write_window[(len(values),)](
            ring, values, places.sequences, places.positions, places.slots, len(values),
            ring.shape[1], ring.stride(0), ring.stride(1), values.stride(0),
            DIM=ring.shape[2], BLOCK_D=next_power(ring.shape[2]),
        )  # fmt: skip
