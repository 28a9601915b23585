"""How many rows a matrix product may have, so that each row gets the same bits among any others.

Libraries pick the code of a product by its number of rows, and each sums in an order of its own.
Where the borders lie differs by CPU, matrix and number of threads, so this machine's are measured.
Seen: one row apart from all others (AVX-512, 1536 inputs); up to 32 rows apart from more (AMX, 576
inputs); up to 38 rows and 256 apart from those between (AMX, 512 inputs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

Product = Callable[[torch.Tensor], torch.Tensor]
"""rows [T, in] -> [T, out]"""
MakeProduct = Callable[[torch.Tensor, torch.Tensor | None], Product]
"""weight [out, in], bias [out] -> its product"""

SIZES = (2, 4, 8, 12, 16, 24, 32, 33, 48, 64, 65, 96, 128, 129, 192, 256)
"""Numbers of rows that are tried. One row alone always has company, more than the last are cut."""
_COMPARED = 8
"""Rows whose bits are compared, as the first of a product and as the last."""
_CALL_ROWS = 32
"""What a product costs by itself, in rows (measured: 1 row and 32 take about as long)."""
_USUAL = (1, 8, 32, 64, 256)
"""Numbers of rows that the cheapest sizes are chosen for."""


@dataclass(frozen=True)
class ExactRows:
    """Numbers of rows among which no row's bits depend on the others."""

    sizes: tuple[int, ...]
    """Ascending"""
    is_dense: bool
    """Every number between the least and the most does as well"""

    def plan(self, num_rows: int) -> tuple[int, ...]:
        """Sizes of the products for so many rows; the last may have rows to spare."""
        full, rest = divmod(num_rows, self.sizes[-1])
        return (self.sizes[-1],) * full + (_plan(self, rest) if rest else ())


def exact_rows(
    make: MakeProduct, weight: torch.Tensor, bias: torch.Tensor | None
) -> ExactRows | None:
    """Measured once for each form of product; None = any number, as on devices.

    make: the kind of product; weight: [out, in], bias: [out]: only their forms matter.
    """
    if weight.device.type != "cpu":
        return None
    has_bias, num_threads = bias is not None, torch.get_num_threads()
    return _measured(make, tuple(weight.shape), weight.dtype, has_bias, num_threads)


@cache
def _measured(
    make: MakeProduct, shape: tuple[int, int], dtype: torch.dtype, has_bias: bool, _threads: int
) -> ExactRows:
    """Of sums that cancel out: what is left is the rounding, which tells one order from another."""
    generator = torch.Generator().manual_seed(0)
    num_out, num_in = shape
    half = num_in // 2
    rows = torch.randn((SIZES[-1], num_in), generator=generator).to(dtype)
    weight = torch.randn(shape, generator=generator).to(dtype)
    rows[:, half : 2 * half] = rows[:, :half]
    weight[:, half : 2 * half] = -weight[:, :half]
    product = make(weight, torch.zeros(num_out, dtype=dtype) if has_bias else None)
    kinds: dict[bytes, list[int]] = {}
    for size in SIZES:
        kinds.setdefault(_bits(product, rows, size), []).append(size)
    found = [ExactRows(tuple(sizes), len(kinds) == 1) for sizes in kinds.values()]
    return min(found, key=lambda exact: sum(_cost(exact.plan(num)) for num in _USUAL))


def _bits(product: Product, rows: torch.Tensor, size: int) -> bytes:
    """What the same rows become, so many at a time."""
    ends, between = rows[:_COMPARED], rows[_COMPARED : max(size - _COMPARED, _COMPARED)]
    made = torch.cat(
        [product(part) for part in torch.split(torch.cat([ends, between, ends]), size)]
    )
    compared = torch.cat([made[:_COMPARED], made[-_COMPARED:]])
    return compared.contiguous().view(torch.uint8).numpy().tobytes()


@cache
def _plan(exact: ExactRows, num_rows: int) -> tuple[int, ...]:
    """For fewer rows than the largest size."""
    if exact.is_dense:
        return (max(num_rows, exact.sizes[0]),)
    plans: list[tuple[int, ...]] = [(next(size for size in exact.sizes if size >= num_rows),)]
    if below := [size for size in exact.sizes if size < num_rows]:
        plans.append((below[-1], *_plan(exact, num_rows - below[-1])))
    return min(plans, key=_cost)


def _cost(plan: tuple[int, ...]) -> int:
    return sum(size + _CALL_ROWS for size in plan)
