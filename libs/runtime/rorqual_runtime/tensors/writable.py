"""Arena memory in the hands of its writer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

import xxhash
from rorqual_proto.v1.tensor_pb2 import TensorTicket

from rorqual_runtime.tensors.arena import DEFAULT_LEASE_S, Arena, Reservation
from rorqual_runtime.tensors.copying import U8Array


class WritableSlot:
    """Arena memory to fill in place, then `seal` or `discard`; as a context manager it discards
    itself when left unsealed. Has no lease before it is sealed: hold it only while filling."""

    def __init__(
        self, arena: Arena, reservation: Reservation, publish: Callable[[float, int], TensorTicket]
    ) -> None:
        """publish: makes the ticket, given lease_s and checksum."""
        self._arena, self._reservation, self._publish = arena, reservation, publish
        self._array = arena.payload(reservation)
        self.view = self._array.data
        """The slot's bytes; void after seal or discard."""
        self._is_open = True

    @property
    def array(self) -> U8Array:
        """The slot's bytes as [num_bytes] uint8; do not keep it past seal or discard."""
        return self._array

    def seal(self, lease_s: float = DEFAULT_LEASE_S, *, checksum: bool = False) -> TensorTicket:
        """Publish what was written; from now on it must not change.

        checksum: hash the payload (about 0.03 ms per MiB, on the caller's thread).
        """
        if not self._is_open:
            raise ValueError("the slot is sealed or discarded already")
        digest = xxhash.xxh3_64_intdigest(self._array.data) if checksum else 0
        ticket = self._publish(lease_s, digest)
        self._shut()
        return ticket

    def discard(self) -> None:
        """Give the memory back unpublished; nothing when sealed or discarded already."""
        if self._is_open:
            self._shut()
            self._arena.discard(self._reservation)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()

    def _shut(self) -> None:
        self._is_open = False
        with contextlib.suppress(BufferError):  # the writer still has a view of the view
            self.view.release()
