"""Entries in pages and window KV in rings."""

from __future__ import annotations

import pytest
import torch

from tests.support.kernel_cases.harness import (
    PAGE,
    RING,
    Kernels,
    case,
    check_equal,
)


@case
def entries_are_read_where_pages_say(kernels: Kernels) -> None:
    for per_page, dtype in ((8, torch.float32), (2, torch.bfloat16)):
        places = kernels.places([(17, 2), (0, 3), (31, 1)])
        entries = kernels.paged(per_page, 11, dtype)
        last = (places.positions.long() + 1) * per_page // PAGE
        numbers = torch.stack([torch.arange(19)] * 6).to(kernels.device)
        numbers = torch.where(numbers < last[:, None], numbers, -1).flip(1)
        for wanted in (numbers, numbers.int(), numbers[:, :0], numbers[:0]):
            rows = places.part(slice(0, len(wanted)))
            found = kernels("gather_entries")(entries, wanted, rows)
            check_equal(found, kernels.twin("gather_entries")(entries, wanted, rows))


@case
def rows_that_are_not_contiguous_are_refused(kernels: Kernels) -> None:
    places = kernels.places([(3, 1)])
    turned = kernels.randn(40, 11, 4).transpose(1, 2)
    numbers = torch.zeros(1, 1, dtype=torch.int32, device=kernels.device)
    with pytest.raises(ValueError, match="not contiguous"):
        kernels("gather_entries")(turned, numbers, places)


@case
def entries_are_written_and_nothing_else_is(kernels: Kernels) -> None:
    places = kernels.places([(17, 2), (0, 9)])
    numbers = torch.tensor([0, 3, 4, -1, 2, 0], dtype=torch.int32, device=kernels.device)
    owners = torch.tensor([0, 0, 0, 0, 1, 1], dtype=torch.int32, device=kernels.device)
    values = kernels.randn(6, 13)[:, 1:12]
    pools = []
    for find in (kernels, kernels.twin):
        torch.manual_seed(1)
        entries = kernels.paged(2, 11, torch.float32)
        find("scatter_entries")(entries, values, numbers, owners, places)
        find("scatter_entries")(entries, values[:0], numbers[:0], owners[:0], places)
        pools.append(entries)
    check_equal(*pools)


@case
def rings_keep_the_last_rows(kernels: Kernels) -> None:
    places = kernels.places([(5, 40), (30, 1), (0, RING), (15, 2)])
    values = kernels.randn(places.num_rows, 12, dtype=torch.bfloat16)
    rings = []
    for find in (kernels, kernels.twin):
        ring = torch.zeros(6, 3, RING, 12, dtype=torch.bfloat16, device=kernels.device)[:, 1]
        find("write_window")(ring, values, places)
        rings.append(ring)
    check_equal(*rings)
    slot = int(places.slots[0])
    check_equal(rings[0][slot, 44 % RING], values[39])
