"""Where the rows of a pass lie: what kernels over pages and windows are told."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class RowPlaces:
    """T rows of C sequences. Rows are independent queries: of a prompt's chunk, of a decode step,
    or of drafts that are being checked. A sequence's rows lie behind each other and their
    positions are consecutive; how many it has is its own affair.

    All tensors are int32, contiguous, on the device of the rows.
    """

    sequences: torch.Tensor
    """[T] sequence of each row"""
    positions: torch.Tensor
    """[T] absolute"""
    first_rows: torch.Tensor
    """[C] row where a sequence begins"""
    starts: torch.Tensor
    """[C] position of that row"""
    floors: torch.Tensor
    """[C] no window key before this position is read"""
    slots: torch.Tensor
    """[C] window slots"""
    pages: torch.Tensor
    """All sequences' pages behind each other, from position 0 on"""
    page_starts: torch.Tensor
    """[C + 1] into pages"""

    @property
    def num_rows(self) -> int:
        return len(self.sequences)

    def part(self, rows: slice) -> RowPlaces:
        """Some rows; only what belongs to rows is cut."""
        return replace(self, sequences=self.sequences[rows], positions=self.positions[rows])

    def pages_of(self, numbers: torch.Tensor) -> torch.Tensor:
        """int64: the page behind each page number of its row's sequence; numbers: [T, k]."""
        first = self.page_starts[self.sequences.long()].long()
        return self.pages[first[:, None] + numbers].long()
