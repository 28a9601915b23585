"""One mixture layer's way to the experts of a group, and how experts change ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from rorqual_policy.expert_placement import Cards
from rorqual_policy.expert_rebalance import Fetch, plan_fetches

from rorqual_engine.errors import EngineError
from rorqual_engine.models.deepseek.experts import ExpertSet, Routing
from rorqual_engine.parallel import Arrived, ExpertGroup, ExpertPlacement
from rorqual_engine.parallel.load import LayerCounter
from rorqual_engine.parallel.split import make_split

Result = TypeVar("Result")
_ANY, _FAILED = -1, -2
"""Said instead of the bytes of an expert: by a rank that holds none, and by one that can't move."""


class MoveFailed(EngineError):
    """A layer's experts stay where they were, in every rank."""

    def __init__(self, layer: int, during: str, ranks: Sequence[int]) -> None:
        self.layer, self.during, self.ranks = layer, during, tuple(ranks)
        super().__init__(f"layer {layer} keeps its table: {during} failed on ranks {list(ranks)}")


class RemoteExperts:
    """Sends rows where their experts are, by a table that can change between steps."""

    def __init__(self, group: ExpertGroup, layer: int, num_experts: int) -> None:
        """Raises: BadPlacement."""
        self._group, self._exchange, self._layer = group, group.exchange, layer
        self.counter = LayerCounter(num_experts)
        self._use(group.placement(layer, num_experts))

    def _use(self, placement: ExpertPlacement) -> None:
        self._placement = placement
        self._split = make_split(self._group.split, placement, self._exchange)

    @property
    def held(self) -> tuple[int, ...]:
        """Numbers of the experts of this rank."""
        return self._placement.ranks[self._exchange.rank]

    @property
    def table(self) -> Cards:
        return self._placement.ranks

    def send(self, x: torch.Tensor, routing: Routing) -> Arrived:
        destinations = self._split.destinations(routing.experts, self.counter)
        return self._exchange.dispatch(x, destinations, routing.weights)

    def collect(self, outputs: torch.Tensor, arrived: Arrived) -> torch.Tensor:
        return self._exchange.combine(outputs, arrived)

    def move(self, after: Cards, experts: ExpertSet) -> None:
        """Changes the table, and fetches what this rank's slots hold then. Every rank calls it
        with the same table between the same steps; it takes memory for what travels.

        Raises: BadPlacement, ValueError in every rank alike; MoveFailed, the old table is valid
        then; GroupLost.
        """
        placement = ExpertPlacement(self._placement.num_experts, after)
        fetches = plan_fetches(self.table, after)
        here = self._exchange.rank
        leaving = sorted((f for f in fetches if f.source == here), key=lambda f: f.target)
        coming = sorted((f for f in fetches if f.target == here), key=lambda f: f.source)
        num_bytes = _num_bytes(experts) if self.held else _ANY
        device = self._exchange.device
        packed = self._together(
            "packing", lambda: _pack(experts, leaving, num_bytes, device), num_bytes
        )
        ranks = range(self._exchange.size)
        sent = [sum(f.target == rank for f in leaving) for rank in ranks]
        received = [sum(f.source == rank for f in coming) for rank in ranks]
        rows = self._exchange.move(packed, sent, received)
        puts = self._together("unpacking", lambda: _prepare(experts, coming, rows), 0)
        for put in puts:
            put()
        self._use(placement)
        self.counter.num_moved += len(fetches)

    def _together(self, what: str, call: Callable[[], Result], mark: int) -> Result:
        """The result, once every rank has its own and the same mark (or _ANY).

        Raises: MoveFailed in all ranks when it fails in one.
        """
        result, fault = None, None
        try:
            result = call()
        except (RuntimeError, ValueError, MemoryError) as err:
            fault = err
        marks = self._exchange.agree(_FAILED if fault else mark)
        wanted = max(marks)
        failed = [rank for rank, found in enumerate(marks) if found not in (wanted, _ANY)]
        if fault is not None or failed:
            raise MoveFailed(self._layer, what, failed or range(len(marks))) from fault
        assert result is not None
        return result


def _num_bytes(experts: ExpertSet) -> int:
    """Of the expert in a slot: the same in every slot that weights can move between."""
    return sum(tensor.nbytes for tensor in experts.stored(0))


def _pack(
    experts: ExpertSet, leaving: Sequence[Fetch], num_bytes: int, device: torch.device
) -> torch.Tensor:
    """uint8 [n, num_bytes]. Raises: ValueError."""
    rows = torch.empty((len(leaving), max(num_bytes, 1)), dtype=torch.uint8, device=device)
    for row, fetch in zip(rows, leaving, strict=True):
        tensors = experts.stored(fetch.source_slot)
        for part, tensor in zip(_parts(row, tensors), tensors, strict=True):
            part.copy_(tensor.contiguous().view(torch.uint8).flatten())
    return rows


def _prepare(
    experts: ExpertSet, coming: Sequence[Fetch], rows: torch.Tensor
) -> list[Callable[[], None]]:
    """Raises: ValueError."""
    puts = []
    for row, fetch in zip(rows, coming, strict=True):
        forms = experts.stored(fetch.target_slot)
        tensors = [_typed(part, form) for part, form in zip(_parts(row, forms), forms, strict=True)]
        puts.append(experts.prepare(fetch.target_slot, tensors))
    return puts


def _parts(row: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The row's bytes of each tensor. Raises: ValueError when it has more or fewer in all."""
    sizes = [tensor.nbytes for tensor in tensors]
    if sum(sizes) != len(row):
        raise ValueError(f"an expert of {sum(sizes)} bytes among those of {len(row)}")
    return torch.split(row, sizes)


def _typed(part: torch.Tensor, form: torch.Tensor) -> torch.Tensor:
    if part.storage_offset() % form.dtype.itemsize:
        part = part.clone()
    return part.view(form.dtype).view(form.shape)
