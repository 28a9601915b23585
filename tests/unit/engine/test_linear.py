"""The packed product gives the bits of the plain one, for every number of rows."""

from __future__ import annotations

import pytest
import torch
from rorqual_engine.models.linear import Linear
from torch.nn import functional


@pytest.mark.parametrize(("num_in", "num_out"), [(576, 960), (1536, 576), (64, 48)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_rows_do_not_depend_on_their_batch(num_in: int, num_out: int, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(num_in)
    weight = (torch.randn(num_out, num_in, generator=generator) * 0.05).bfloat16()
    bias = torch.randn(num_out, generator=generator).bfloat16() if has_bias else None
    rows = torch.randn(700, num_in, generator=generator).bfloat16()
    linear = Linear(weight, bias)
    whole = linear(rows)
    for num_rows in (1, 2, 7, 32, 33, 256, 257, 513):
        parts = [linear(rows[at : at + num_rows]) for at in range(0, len(rows), num_rows)]
        assert torch.equal(torch.cat(parts), whole), num_rows
    exact = functional.linear(
        rows.double(), weight.double(), None if bias is None else bias.double()
    )
    assert (whole.double() - exact).abs().max() < 0.05


def test_float32_stays_plain() -> None:
    weight = torch.randn(8, 16)
    rows = torch.randn(3, 16)
    assert torch.equal(Linear(weight)(rows), functional.linear(rows, weight))
