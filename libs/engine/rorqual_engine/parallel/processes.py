"""The exchange over torch.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from rorqual_engine.parallel.exchange import Arrived, ExpertExchange, GroupLost
from rorqual_engine.parallel.placement import Destinations

dist: Any = torch.distributed  # groups and stores are there, but not in its types

_NUMBER_BYTES = 4
"""In front of every row: the slot it goes to."""
_HEAD_BYTES = 16
_FILE = "file://"
_FIRST_BYTES = 1 << 15
"""Rows for one rank that fit the first message: all, in steps that decode."""


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
        """address: host:port where rank 0 listens, or file:///path, which nobody has made yet and
        all ranks can open. Waits for the others for timeout_s at most.

        Raises: GroupLost.
        """
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is not among 0..{size - 1}")
        self.rank, self.size = rank, size
        self.device = device or torch.device("cpu")
        self._fault: GroupLost | None = None
        self._group: Any = None
        self._guarded("joining", lambda: self._join(address, timedelta(seconds=timeout_s)))

    def _join(self, address: str, limit: timedelta) -> None:
        """A group of its own: torch's default group is one a process and numbers its successors,
        so that a process which had one before would look for its peers under another name."""
        store = dist.PrefixStore("experts", self._store(address, limit))
        if self.device.type != "cuda":
            self._group = dist.ProcessGroupGloo(store, self.rank, self.size, timeout=limit)
            return
        if self.device.index is not None:
            torch.cuda.set_device(self.device)
        # else NCCL's waits only queue, and a limit ends the process
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        self._group = dist.ProcessGroupNCCL(store, self.rank, self.size, options)

    def _store(self, address: str, limit: timedelta) -> Any:
        """Where the ranks find each other."""
        if address.startswith(_FILE):
            store = dist.FileStore(address.removeprefix(_FILE), self.size)
        else:
            host, _, port = address.rpartition(":")
            store = dist.TCPStore(host, int(port), self.size, self.rank == 0, limit)
        store.set_timeout(limit)
        return store

    def share(self, values: torch.Tensor) -> torch.Tensor:
        mine = values.to(self.device).expand(self.size, -1).contiguous()
        each = tuple([1] * self.size)
        return self._swap("agreement", mine, each, each).cpu()

    def move(
        self, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> torch.Tensor:
        return self._swap("a move of experts", rows, tuple(sent), tuple(received))

    def dispatch(
        self, x: torch.Tensor, destinations: Destinations, weights: torch.Tensor
    ) -> Arrived:
        ranks = destinations.ranks.flatten()
        order = ranks.argsort(stable=True)
        top_k = destinations.ranks.shape[1]
        numbers = destinations.slots.flatten()[order].to(torch.int32)
        packed = torch.cat([_bytes(numbers[:, None]), _bytes(x[order // top_k])], dim=1)
        sent = torch.bincount(ranks, minlength=self.size)
        arrived, received = self._spread(packed, ranks[order], sent)
        return Arrived(
            rows=_typed(arrived[:, _NUMBER_BYTES:], x.dtype),
            experts=_typed(arrived[:, :_NUMBER_BYTES], torch.int32)[:, 0].long(),
            received=tuple(received.tolist()),
            sent=tuple(sent.tolist()),
            order=order,
            weights=weights,
        )

    def _spread(
        self, packed: torch.Tensor, ranks: torch.Tensor, sent: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows by sender, how many of each sender).

        packed: uint8 [N, width] in order of ranks int64 [N]; sent: [size] rows for each. The first
        message has the same size for all and says how many rows there are; a second one follows
        when some rank has more for another than the first can hold.
        """
        width = packed.shape[1]
        room = max(1, _FIRST_BYTES // width)
        message, is_first = _first_message(packed, ranks, sent, room)
        each = tuple([1] * self.size)
        found = self._swap("dispatch", message, each, each)
        received, flags = _typed(found[:, :_HEAD_BYTES], torch.int64).unbind(1)
        is_filled = torch.arange(room, device=ranks.device) < received[:, None]
        rows = found[:, _HEAD_BYTES:].reshape(self.size, room, width)[is_filled]
        if not bool(flags.any()):
            return rows, received
        more_sent, more = ((counts - room).clamp_min(0) for counts in (sent, received))
        sizes = tuple(more_sent.tolist()), tuple(more.tolist())
        rest = self._swap("dispatch", packed[~is_first], *sizes)
        senders = torch.arange(self.size, device=ranks.device)
        owners = [senders.repeat_interleave(count) for count in (received.clamp_max(room), more)]
        return torch.cat([rows, rest])[torch.cat(owners).argsort(stable=True)], received

    def combine(self, outputs: torch.Tensor, arrived: Arrived) -> torch.Tensor:
        back = self._swap("combine", _bytes(outputs), arrived.received, arrived.sent)
        num_rows, top_k = arrived.weights.shape
        parts = back.new_empty((num_rows * top_k, outputs.shape[1]), dtype=torch.float32)
        parts[arrived.order] = _typed(back, outputs.dtype).float()
        parts = parts.view(num_rows, top_k, outputs.shape[1]) * arrived.weights[:, :, None]
        total = parts[:, 0]
        for choice in range(1, top_k):
            total = total + parts[:, choice]
        return total

    def close(self) -> None:
        """Also ends the group's threads and connections, which nothing but its destructor does
        between CPUs."""
        group, self._group = self._group, None
        if group is not None:
            if self._fault is None:
                self._fault = GroupLost(self.rank, self.size, "nothing", 0.0, "it has left")
            group.shutdown()

    def _swap(
        self, what: str, rows: torch.Tensor, sent: tuple[int, ...], received: tuple[int, ...]
    ) -> torch.Tensor:
        """Bytes [sum of sent, width] -> [sum of received, width]."""
        target = rows.new_empty((sum(received), rows.shape[1]))
        self._guarded(
            what,
            lambda: self._group.alltoall_base(target, rows, list(received), list(sent)).wait(),
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


def _first_message(
    packed: torch.Tensor, ranks: torch.Tensor, sent: torch.Tensor, room: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(uint8 [size, head and room rows], bool [N] which rows are in it).

    A head: int64, how many rows there are in all, and whether some rank gets more than room.
    """
    place = torch.arange(len(packed), device=ranks.device) - (sent.cumsum(0) - sent)[ranks]
    is_first = place < room
    rows = packed.new_zeros((len(sent), room, packed.shape[1]))
    rows[ranks[is_first], place[is_first]] = packed[is_first]
    has_more = (sent > room).any().expand(len(sent)).long()
    heads = _bytes(torch.stack([sent, has_more], dim=1))
    return torch.cat([heads, rows.flatten(1)], dim=1), is_first


def _bytes(rows: torch.Tensor) -> torch.Tensor:
    """[n, width] -> uint8 [n, width * itemsize]"""
    return rows.contiguous().view(torch.uint8)


def _typed(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The other way round."""
    return rows.flatten().view(dtype).view(len(rows), rows.shape[1] // dtype.itemsize)
