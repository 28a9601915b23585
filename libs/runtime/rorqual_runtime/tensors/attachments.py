"""The reader's side of shared memory: segments of other processes, mapped once and kept."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Executor

import numpy as np
from rorqual_proto.v1 import tensor_pb2

from rorqual_runtime.clock import Clock
from rorqual_runtime.errors import Corrupt, StaleTicket
from rorqual_runtime.tensors import slots
from rorqual_runtime.tensors.copying import U8Array, copy_bytes, run_copy
from rorqual_runtime.tensors.segment import AttachedSegment

_MAX_ATTACHED = 32


class Attachments:
    """Reads tickets out of other processes' segments. For one event loop."""

    def __init__(self, clock: Clock, executor: Executor) -> None:
        self._clock = clock
        self._executor = executor
        self._segments: OrderedDict[str, tuple[AttachedSegment, U8Array]] = OrderedDict()

    @property
    def num_attached(self) -> int:
        return len(self._segments)

    def attach(self, endpoint: tensor_pb2.ShmEndpoint) -> bool:
        """Map the endpoint's segment unless it is mapped; False when it cannot be reached here.

        That includes another mount of /dev/shm on the same host: use another endpoint then.
        """
        known = self._segments.get(endpoint.segment)
        if known is not None:
            if known[0].is_open():
                self._segments.move_to_end(endpoint.segment)
                return True
            self._drop(endpoint.segment)
        try:
            segment = AttachedSegment(endpoint.segment)
        except StaleTicket:
            return False
        self._segments[segment.name] = (segment, np.frombuffer(segment.map, np.uint8))
        if len(self._segments) > _MAX_ATTACHED:
            self._drop(next(iter(self._segments)))
        return True

    async def read(
        self, segment_name: str, ticket: tensor_pb2.TensorTicket, into: U8Array | None
    ) -> U8Array:
        """Copy an attached segment's ticket into `into`, or into a new array.

        Raises: StaleTicket when the data is not (or no longer) the ticket's: `into` then holds
            anything. Corrupt when its checksum is wrong.
        """
        segment, memory = self._segments[segment_name]
        now_ns = int(self._clock.monotonic_s() * 1e9)
        header = slots.check_ticket(segment.words, segment.shape, ticket, now_ns)
        source = memory[header.offset_bytes : header.offset_bytes + header.size_bytes]
        target = np.empty(header.size_bytes, np.uint8) if into is None else into

        def copy() -> int:
            segment.prefault(header.offset_bytes, header.size_bytes)
            return copy_bytes(target, (source,), checksum=ticket.xxh3_64 != 0)

        digest = await run_copy(self._executor, header.size_bytes, copy)
        if slots.read_generation(segment.words, ticket.slot) != ticket.generation:
            raise StaleTicket("the ticket's data was released while it was read")
        if digest != ticket.xxh3_64:
            raise Corrupt("the tensor's checksum does not match its ticket")
        return target

    def drop_dead(self) -> int:
        """Let go of segments whose owner has closed or died. Returns how many."""
        dead = [
            name
            for name, (segment, _) in self._segments.items()
            if not segment.is_open() or not segment.owner_is_alive()
        ]
        for name in dead:
            self._drop(name)
        return len(dead)

    def close(self) -> None:
        for name in list(self._segments):
            self._drop(name)

    def _drop(self, name: str) -> None:
        segment, _ = self._segments.pop(name)
        segment.close()
