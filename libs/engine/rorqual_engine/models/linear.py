"""Matrix products whose rows do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

LINEAR_ROWS = 512
"""Rows of one matrix product. Larger batches are cut, because the libraries' products were
measured to give every row the same bits only up to here."""

_PACKED_FOR_ROWS = 32
"""Batch the blocked weight layout is chosen for. It serves every other batch as well."""

Product = Callable[[torch.Tensor], torch.Tensor]


class Linear:
    """rows [T, in] -> rows @ weight.T + bias [T, out], each row by itself.

    One row alone runs as two equal rows: oneDNN sums a single row in another order
    (seen for 1536 inputs: about one row in ten differed in a bit).
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """weight: [out, in]; bias: [out]. A bf16 weight on the CPU is kept in oneDNN's layout."""
        is_packable = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
        if is_packable and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
            self._product = _packed(self._weight, bias)
        else:
            self._weight = weight
            self._product = _plain(weight, bias)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return by_rows(self._product, rows)

    def stored(self) -> list[torch.Tensor]:
        """What it was made of, but for the bias; to be read only."""
        return [self._weight.to_dense() if self._weight.is_mkldnn else self._weight]

    def with_stored(self, tensors: Sequence[torch.Tensor]) -> Linear:
        """The same kind of product, without bias, of other tensors of the same forms."""
        (weight,) = tensors
        return Linear(weight)


def by_rows(product: Product, rows: torch.Tensor) -> torch.Tensor:
    """product(rows), each row by itself on the CPU; a device's products take all at once."""
    if rows.device.type != "cpu":
        return product(rows)
    if len(rows) == 1:
        return product(rows.expand(2, -1))[:1]
    if len(rows) <= LINEAR_ROWS:
        return product(rows)
    return torch.cat([by_rows(product, part) for part in torch.split(rows, LINEAR_ROWS)])


def _plain(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    return lambda rows: functional.linear(rows, weight, bias)


def _packed(packed: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """The same bits as `_plain`, without reordering the weight at every call.

    Source: measured per step of SmolLM2-135M's products: 1 row 10.3 -> 4.9 ms, 32 rows
    18.5 -> 13.4 ms, 64 rows 30.5 -> 22.4 ms.
    """
    product = torch.ops.mkldnn._linear_pointwise.default  # named: no overload search a call
    return lambda rows: product(rows, packed, bias, "none", [], "")  # type: ignore[no-any-return]
