"""What the cases are made with, and how results are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from rorqual_engine.kernels.registry import KernelChoice, find_kernel
from rorqual_engine.ref.places import RowPlaces

PAGE = 8
"""Tokens a page stands for here; kernels are told entries a page, nothing else."""
RING = 16
NAN = float("nan")
CASES: dict[str, Callable[[Kernels], None]] = {}
"""By name; filled by the modules of this package."""


class Kernels:
    """The implementation under test and its twin."""

    def __init__(self, device: str, name: str = "triton") -> None:
        self.device = torch.device(device)
        self._choice = KernelChoice(everywhere=name)

    def __call__(self, op: str) -> Callable[..., Any]:
        return find_kernel(op, self.device, self._choice)

    def twin(self, op: str) -> Callable[..., Any]:
        return find_kernel(op, self.device, KernelChoice(everywhere="twin"))

    def randn(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape).to(self.device, dtype)

    def places(self, sequences: Sequence[tuple[int, int]], floors: Sequence[int] = ()) -> RowPlaces:
        """sequences: (start, rows); pages and slots in no order."""
        free_pages, slots = torch.randperm(40).tolist(), torch.randperm(6).tolist()
        rows, positions, first_rows, pages, page_starts = [], [], [], [], [0]
        for number, (start, count) in enumerate(sequences):
            first_rows.append(len(rows))
            rows += [number] * count
            positions += range(start, start + count)
            pages += [free_pages.pop() for _ in range(-(-(start + count) // PAGE))]
            page_starts.append(len(pages))
        return RowPlaces(
            *(
                torch.tensor(values, dtype=torch.int32, device=self.device)
                for values in (
                    rows,
                    positions,
                    first_rows,
                    [start for start, _ in sequences],
                    list(floors) or [0] * len(sequences),
                    slots[: len(sequences)],
                    pages,
                    page_starts,
                )
            )
        )

    def paged(self, per_page: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
        """[40, per_page, dim], a part of larger pages; what lies around is NaN."""
        pool = torch.full((40, per_page * dim + 7), NAN, dtype=dtype, device=self.device)
        view = pool[:, 3 : 3 + per_page * dim].unflatten(1, (per_page, dim))
        view.copy_(torch.randn(view.shape))
        return view


def case(function: Callable[[Kernels], None]) -> Callable[[Kernels], None]:
    CASES[function.__name__] = function
    return function


def check_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    if found.dtype == torch.bfloat16:
        tolerance = 0.02
    assert found.dtype == expected.dtype and found.shape == expected.shape
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


def check_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert torch.equal(found, expected), (found, expected)


def check_bits(kernels: Kernels, found: torch.Tensor, expected: torch.Tensor) -> None:
    """A row's bits do not depend on the batch. The interpreter multiplies with the CPU's library,
    which sums a matrix' last rows in another order."""
    (check_close if kernels.device.type == "cpu" else check_equal)(found, expected)
