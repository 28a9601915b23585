"""Which replica every row of a step goes to, so that the ranks get equally many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rorqual_policy.expert_dispatch import Scratch, Table, table_of
from rorqual_policy.expert_split import DEFAULT_SPLIT, GOLDEN

from rorqual_engine.parallel import compiled
from rorqual_engine.parallel.exchange import ExpertExchange
from rorqual_engine.parallel.load import LayerCounter
from rorqual_engine.parallel.placement import Destinations, ExpertPlacement

Ints = npt.NDArray[np.int64]


class SplitBy(StrEnum):
    """What a layer's rows are split by; the same in every rank."""

    COUNTS = "counts"
    """The step's, which all ranks tell each other: one more collective call a layer."""
    OWN = "own"
    """The step's, of the rank itself: all there are where the other ranks have no rows."""
    RECENT = "recent"
    """The rank's own of the steps before: nothing is waited for."""


class RowSplit(ABC):
    """One rank's view of one layer's table."""

    def __init__(self, placement: ExpertPlacement, rank: int) -> None:
        found = table_of(placement.num_experts, placement.ranks)
        first, hosts, order, slots = (np.array(part, np.int64) for part in found)
        # Any: arrays are what the compiled policy takes for sequences
        self._table: Any = Table(first, hosts, order, slots)  # type: ignore[arg-type]
        self._rank, self._size = rank, len(placement.ranks)
        self._num_experts = placement.num_experts

    def destinations(self, experts: torch.Tensor, counter: LayerCounter) -> Destinations:
        """Of this rank's rows, on their device; the counter is told of them.

        experts: int32 or int64 [T, k]. Raises: GroupLost.
        """
        flat = experts.cpu().numpy().astype(np.int64).ravel()
        counts = np.bincount(flat, minlength=self._num_experts)
        to_ranks, to_slots = np.empty_like(flat), np.empty_like(flat)
        busiest, num_rows = self._assign(flat, counts, to_ranks, to_slots)
        counter.add(counts, busiest, num_rows / self._size)
        ranks, slots = (
            torch.from_numpy(found).view(experts.shape).to(experts.device)
            for found in (to_ranks, to_slots)
        )
        return Destinations(ranks, slots)

    @abstractmethod
    def _assign(
        self, experts: Ints, counts: Ints, to_ranks: Ints, to_slots: Ints
    ) -> tuple[float, int]:
        """Fill to_ranks and to_slots for rows of these experts; (rows of the busiest rank, rows of
        all) as far as known here. counts: of the experts."""


class StepSplit(RowSplit):
    """By the step's counts."""

    def __init__(
        self, placement: ExpertPlacement, rank: int, exchange: ExpertExchange | None
    ) -> None:
        """exchange: to ask the other ranks for their counts; None = they have no rows."""
        super().__init__(placement, rank)
        self._exchange = exchange
        self._counts = np.zeros((self._size, self._num_experts), np.int64)
        num_places = len(self._table.hosts)
        self._scratch: Any = Scratch(
            total=np.zeros(self._num_experts),  # type: ignore[arg-type]
            next_place=np.zeros(self._num_experts, np.int64),  # type: ignore[arg-type]
            split=np.zeros(num_places),  # type: ignore[arg-type]
            own=np.zeros(num_places),  # type: ignore[arg-type]
            load=np.zeros(self._size),  # type: ignore[arg-type]
        )

    def _assign(
        self, experts: Ints, counts: Ints, to_ranks: Ints, to_slots: Ints
    ) -> tuple[float, int]:
        if self._exchange is None:
            self._counts[self._rank] = counts
        else:
            self._counts[:] = self._exchange.share(torch.from_numpy(counts)).numpy()
        if not len(experts):
            return 0.0, 0  # what the others do is theirs to count
        busiest: float = compiled.assign_rows()(
            self._rank, experts, self._counts, self._table, self._scratch, DEFAULT_SPLIT,
            to_ranks, to_slots,
        )  # fmt: skip
        return busiest, int(self._counts.sum())


class RecentSplit(RowSplit):
    """By counts of the steps before, half of which are kept when they are looked at again."""

    STEPS = 32
    """From one look to the next."""

    def __init__(self, placement: ExpertPlacement, rank: int) -> None:
        super().__init__(placement, rank)
        self._phase = rank * GOLDEN % 1.0
        self._turns = np.zeros(self._num_experts, np.int64)
        self._recent = np.ones(self._num_experts)
        self._num_steps = 0
        self._split = np.zeros(len(self._table.hosts))
        self._look()

    def _assign(
        self, experts: Ints, counts: Ints, to_ranks: Ints, to_slots: Ints
    ) -> tuple[float, int]:
        if not len(experts):
            return 0.0, 0
        compiled.assign_by_recent()(
            self._phase, experts, self._turns, self._table, self._split, to_ranks, to_slots
        )
        self._recent += counts
        self._num_steps += 1
        if self._num_steps % self.STEPS == 0:
            self._look()
        return float(np.bincount(to_ranks).max()), len(experts)

    def _look(self) -> None:
        first, hosts, order, _ = self._table
        load = np.zeros(self._size)
        compiled.fill_split()(self._recent, first, hosts, order, self._split, load, DEFAULT_SPLIT)
        self._recent *= 0.5


def make_split(by: SplitBy, placement: ExpertPlacement, exchange: ExpertExchange) -> RowSplit:
    if by is SplitBy.RECENT:
        return RecentSplit(placement, exchange.rank)
    return StepSplit(placement, exchange.rank, exchange if by is SplitBy.COUNTS else None)
