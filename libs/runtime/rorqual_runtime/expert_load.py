"""What the experts of a model were asked for, in a load report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rorqual_proto.v1.load_pb2 import LoadReport


class LayerLoad(Protocol):
    """As the engine counts it."""

    @property
    def num_rows(self) -> int: ...
    @property
    def hottest(self) -> float: ...
    @property
    def imbalance(self) -> float: ...
    @property
    def num_moved(self) -> int: ...


class ExpertLoad(Protocol):
    """One layer."""

    @property
    def total(self) -> LayerLoad:
        """Since start."""

    @property
    def recent(self) -> LayerLoad:
        """In the last window."""


def fill_expert_load(report: LoadReport, layers: Sequence[ExpertLoad]) -> None:
    """Nothing for a model without experts."""
    for layer, load in enumerate(layers):
        report.experts.rows_total[layer] = load.total.num_rows
        report.experts.hottest[layer] = load.recent.hottest
        if load.total.imbalance:
            report.experts.imbalance[layer] = load.recent.imbalance
            report.experts.moved_slots_total[layer] = load.total.num_moved
