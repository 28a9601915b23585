"""What mixture layers were asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LayerLoad:
    """One layer, since the model was loaded or between two looks."""

    counts: Ints
    """Rows by expert, sent from this process."""
    busiest_rows: float = 0.0
    """Rows of the rank with most, added up over the steps."""
    mean_rows: float = 0.0
    """Rows of the mean rank, the same way."""
    num_moved: int = 0
    """Slots of all ranks that got another expert."""

    def since(self, before: LayerLoad) -> LayerLoad:
        return LayerLoad(
            self.counts - before.counts,
            self.busiest_rows - before.busiest_rows,
            self.mean_rows - before.mean_rows,
            self.num_moved - before.num_moved,
        )

    @property
    def num_rows(self) -> int:
        """A row counts once for every expert it was sent to."""
        return int(self.counts.sum())

    @property
    def hottest(self) -> float:
        """Rows of the expert with most, over the mean; 0 without rows."""
        return float(self.counts.max() / self.counts.mean()) if self.counts.any() else 0.0

    @property
    def imbalance(self) -> float:
        """How much longer than with even ranks the busiest ones took; 0 without ranks or rows."""
        return self.busiest_rows / self.mean_rows if self.mean_rows else 0.0


@dataclass(frozen=True)
class ExpertLoad:
    """What is told of one layer."""

    total: LayerLoad
    """Since the model was loaded."""
    recent: LayerLoad
    """In the last window."""


class LayerCounter:
    """Counts of a layer whose rows are split over ranks. They only grow: another thread may look
    while a step adds to them, and sees that step whole or in part."""

    def __init__(self, num_experts: int) -> None:
        self._counts = np.zeros(num_experts, np.int64)
        self._busiest_rows = self._mean_rows = 0.0
        self.num_moved = 0

    def add(self, counts: Ints, busiest_rows: float, mean_rows: float) -> None:
        """One step."""
        self._counts += counts
        self._busiest_rows += busiest_rows
        self._mean_rows += mean_rows

    def load(self) -> LayerLoad:
        counts = self._counts.copy()
        return LayerLoad(counts, self._busiest_rows, self._mean_rows, self.num_moved)
