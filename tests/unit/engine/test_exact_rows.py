"""Products get as many rows as this machine is exact with."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import pytest
import torch
from rorqual_engine.models.exact_rows import SIZES, ExactRows, Product, exact_rows
from rorqual_engine.models.linear import by_rows

SPARSE = ExactRows((2, 4, 16, 64), is_dense=False)
DENSE = ExactRows((2, 64), is_dense=True)


@pytest.mark.parametrize(
    ("exact", "num_rows", "products"),
    [
        (SPARSE, 1, [2]),
        (SPARSE, 4, [4]),
        (SPARSE, 5, [16]),
        (SPARSE, 18, [16, 2]),
        (SPARSE, 40, [64]),
        (SPARSE, 150, [64, 64, 64]),
        (DENSE, 1, [2]),
        (DENSE, 37, [37]),
        (DENSE, 130, [64, 64, 2]),
        (DENSE, 64 * 4000, [64] * 4000),
        (SPARSE, 0, [0]),
    ],
)
def test_rows_are_cut_and_filled(exact: ExactRows, num_rows: int, products: list[int]) -> None:
    sizes = []

    def product(rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        return 2 * rows

    rows = torch.randn(num_rows, 3)
    assert torch.equal(by_rows(product, rows, exact), 2 * rows)
    assert sizes == products


def summing(is_reversed: Callable[[int], bool]) -> Callable[..., Product]:
    """Sums from left to right, for some numbers of rows from right to left."""

    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        def product(rows: torch.Tensor) -> torch.Tensor:
            terms = rows[:, None, :] * weight
            order = terms.flip(-1) if is_reversed(len(rows)) else terms
            return reduce(torch.add, order.unbind(-1))

        return product

    return make


@pytest.mark.parametrize(
    ("is_reversed", "sizes"),
    [
        (lambda num: num == 1, SIZES),
        (lambda num: num > 32, SIZES[7:]),
        (lambda num: num <= 128, SIZES[:13]),
        (lambda num: num in (33, 128, 256), tuple(s for s in SIZES if s not in (33, 128, 256))),
    ],
)
def test_another_order_of_summing_is_found_out(
    is_reversed: Callable[[int], bool], sizes: tuple[int, ...]
) -> None:
    found = exact_rows(summing(is_reversed), torch.empty(5, 70), None)
    assert found == ExactRows(sizes, is_dense=sizes == SIZES)
