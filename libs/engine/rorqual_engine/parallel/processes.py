"""The exchange over torch.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from rorqual_engine.parallel.exchange import Arrived, ExpertExchange, GroupLost
from rorqual_engine.parallel.placement import Destinations

_NUMBER_BYTES = 4
"""In front of every row: the slot it goes to."""


class ProcessExchange(ExpertExchange):
    """One process a rank; every row and choice is a message of its own."""

    def __init__(
        self,
        address: str,
        rank: int,
        size: int,
        *,
        device: torch.device | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """address: host:port where rank 0 listens; waits for the others for timeout_s at most.

        Raises: GroupLost.
        """
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is not among 0..{size - 1}")
        self.rank, self.size = rank, size
        self.device = device or torch.device("cpu")
        self._fault: GroupLost | None = None
        self._is_open = False
        limit = timedelta(seconds=timeout_s)
        backend = "nccl" if self.device.type == "cuda" else "gloo"

        def join() -> None:
            dist.init_process_group(
                backend,
                init_method=f"tcp://{address}",
                rank=rank,
                world_size=size,
                timeout=limit,
            )

        self._guarded("joining", join)
        self._is_open = True

    def agree(self, value: int) -> list[int]:
        mine = torch.tensor([value], device=self.device)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        self._guarded("agreement", lambda: dist.all_gather(found, mine))
        return [int(each) for each in found]

    def dispatch(
        self, x: torch.Tensor, destinations: Destinations, weights: torch.Tensor
    ) -> Arrived:
        ranks = destinations.ranks.flatten()
        order = ranks.argsort(stable=True)
        sent = torch.bincount(ranks, minlength=self.size)
        received = torch.empty_like(sent)
        self._guarded("counts", lambda: dist.all_to_all_single(received, sent))
        top_k = destinations.ranks.shape[1]
        numbers = destinations.slots.flatten()[order].to(torch.int32)
        packed = torch.cat([_bytes(numbers[:, None]), _bytes(x[order // top_k])], dim=1)
        sizes = tuple(sent.tolist()), tuple(received.tolist())
        arrived = self._swap("dispatch", packed, *sizes)
        return Arrived(
            rows=arrived[:, _NUMBER_BYTES:].contiguous().view(x.dtype),
            experts=arrived[:, :_NUMBER_BYTES].contiguous().view(torch.int32)[:, 0].long(),
            received=sizes[1],
            sent=sizes[0],
            order=order,
            weights=weights,
        )

    def combine(self, outputs: torch.Tensor, arrived: Arrived) -> torch.Tensor:
        back = self._swap("combine", _bytes(outputs), arrived.received, arrived.sent)
        num_rows, top_k = arrived.weights.shape
        parts = back.new_empty((num_rows * top_k, outputs.shape[1]), dtype=torch.float32)
        parts[arrived.order] = back.view(outputs.dtype).float()
        parts = parts.view(num_rows, top_k, outputs.shape[1]) * arrived.weights[:, :, None]
        total = parts[:, 0]
        for choice in range(1, top_k):
            total = total + parts[:, choice]
        return total

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            dist.destroy_process_group()

    def _swap(
        self, what: str, rows: torch.Tensor, sent: tuple[int, ...], received: tuple[int, ...]
    ) -> torch.Tensor:
        """Bytes [sum of sent, width] -> [sum of received, width]."""
        target = rows.new_empty((sum(received), rows.shape[1]))
        self._guarded(
            what, lambda: dist.all_to_all_single(target, rows, list(received), list(sent))
        )
        return target

    def _guarded(self, what: str, call: Callable[[], object]) -> None:
        if self._fault is not None:
            raise self._fault
        start = time.monotonic()
        try:
            call()
        except (RuntimeError, ValueError) as err:  # DistError and timeouts among them
            reason = str(err).splitlines()[0]
            waited_s = time.monotonic() - start
            self._fault = GroupLost(self.rank, self.size, what, waited_s, reason)
            raise self._fault from err


def _bytes(rows: torch.Tensor) -> torch.Tensor:
    """[n, width] -> uint8 [n, width * itemsize]"""
    return rows.contiguous().view(torch.uint8)
