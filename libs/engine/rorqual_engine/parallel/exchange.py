"""How rows come to the experts of other ranks and their outputs come back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rorqual_engine.errors import EngineError
from rorqual_engine.parallel.placement import Destinations


class GroupLost(EngineError):
    """A rank of the group is gone or too late. The group is over: every rank must be restarted."""

    def __init__(self, rank: int, size: int, during: str, waited_s: float, reason: str) -> None:
        self.rank, self.size, self.during, self.waited_s = rank, size, during, waited_s
        super().__init__(
            f"rank {rank} of {size} lost its group during {during} after {waited_s:.1f} s: {reason}"
        )


@dataclass(frozen=True)
class Arrived:
    """Rows for this rank's experts, and what is needed to send their outputs back."""

    rows: torch.Tensor
    """[M, D]"""
    experts: torch.Tensor
    """int64 [M], slots of this rank"""
    received: tuple[int, ...]
    """Rows of each sender, in order of ranks."""
    sent: tuple[int, ...]
    """Rows that this rank sent to each."""
    order: torch.Tensor
    """int64 [T * k], row * k + choice of every row sent"""
    weights: torch.Tensor
    """fp32 [T, k]"""


class ExpertExchange(ABC):
    """One rank's end of the group.

    Every rank makes the same calls in the same order, with as many rows as it happens to have,
    which may be none. A call never waits longer than the group's limit: then it raises GroupLost,
    and so does every later call.

    A device library such as DeepEP plugs in here: its dispatch sends a row once to each rank, and
    its combine sums there, which is less traffic and another order of the sum. Make it a subclass
    that keeps the library's handle in a subclass of Arrived.
    """

    rank: int
    size: int
    device: torch.device
    """Where its rows are."""

    @abstractmethod
    def share(self, values: torch.Tensor) -> torch.Tensor:
        """int64 [size, n]: the values [n] of every rank, in order. Both on the CPU.

        Raises: GroupLost."""

    def agree(self, value: int) -> list[int]:
        """The value of every rank, in order. Raises: GroupLost."""
        found: list[int] = self.share(torch.tensor([value]))[:, 0].tolist()
        return found

    @abstractmethod
    def move(
        self, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> torch.Tensor:
        """uint8 [sum of received, width]: rows for this rank, by sender. rows: uint8 [sum of sent,
        width], by receiver. Raises: GroupLost."""

    @abstractmethod
    def dispatch(
        self, x: torch.Tensor, destinations: Destinations, weights: torch.Tensor
    ) -> Arrived:
        """Sends x [T, D] where its k choices are; weights: fp32 [T, k]. Raises: GroupLost."""

    @abstractmethod
    def combine(self, outputs: torch.Tensor, arrived: Arrived) -> torch.Tensor:
        """fp32 [T, D]: the weighted sum of what the rows' experts made of them, added in the order
        of the choices. outputs: [M, D] of the rows that arrived. Raises: GroupLost."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the group; may be called twice."""
