"""The owner's side of shared memory: a bounded arena of leased, immutable slots."""

from __future__ import annotations

import heapq
import secrets
import threading
from dataclasses import dataclass

import numpy as np
from rorqual_proto.v1 import tensor_pb2

from rorqual_runtime.clock import Clock
from rorqual_runtime.errors import NoCapacity, StaleTicket
from rorqual_runtime.tensors import slots
from rorqual_runtime.tensors.copying import U8Array
from rorqual_runtime.tensors.freelist import ALIGN_BYTES, FreeList, round_up
from rorqual_runtime.tensors.segment import OwnedSegment

DEFAULT_LEASE_S = 30.0
MAX_LEASE_S = 3600.0


@dataclass
class Reservation:
    """Memory of one slot, from allocation until it is freed."""

    slot: int
    generation: int
    offset_bytes: int
    size_bytes: int
    expires_ns: int = 0
    """0 until published: only the writer may free it then."""

    @property
    def held_bytes(self) -> int:
        return max(ALIGN_BYTES, round_up(self.size_bytes))


class Arena:
    """Slots in one segment. Thread-safe; every operation is O(log slots) or better.

    A slot is reserved, filled by its writer, published under a lease, and freed by release, by
    the end of its lease, or by close. Readers in other processes look only at the slot table.
    """

    def __init__(self, capacity_bytes: int, incarnation: int, clock: Clock) -> None:
        self._clock = clock
        self._segment = OwnedSegment(round_up(capacity_bytes), incarnation)
        self._bytes: U8Array = np.frombuffer(self._segment.map, np.uint8)
        self._free = FreeList(round_up(capacity_bytes))
        self._free_slots: list[int] = []
        self._num_slots_used = 0
        self._held: dict[int, Reservation] = {}
        self._ends: list[tuple[int, int, int]] = []  # (expires_ns, slot, generation), a heap
        self._next_generation = secrets.randbits(62) + 1
        self._lock = threading.RLock()
        self._closed = False

    @property
    def segment_name(self) -> str:
        return self._segment.name

    @property
    def num_held(self) -> int:
        """Slots reserved or published."""
        return len(self._held)

    @property
    def num_held_bytes(self) -> int:
        return self._free.span_bytes - self._free.free_bytes

    def slot_header_offset(self, slot: int) -> int:
        return self._segment.shape.slot_header_offset(slot)

    def reserve(self, size_bytes: int) -> Reservation:
        """Memory for a writer, invisible to readers. Frees expired slots first when full.

        Raises: NoCapacity when no free range or no slot is left.
        """
        if size_bytes < 0:
            raise ValueError(f"need size_bytes >= 0; got {size_bytes}")
        with self._lock:
            self._refuse_if_closed()
            reservation = self._try_reserve(size_bytes)
            if reservation is None and self.free_expired():
                reservation = self._try_reserve(size_bytes)
            if reservation is None:
                raise NoCapacity(
                    f"the tensor arena has no room for {size_bytes} bytes: "
                    f"{self._free.free_bytes} of {self._free.span_bytes} are free"
                )
            self._held[reservation.slot] = reservation
        return self._backed(reservation)

    def publish(self, reservation: Reservation, lease_s: float) -> None:
        """Let readers see a filled slot until its lease ends."""
        with self._lock:
            self._refuse_if_closed()
            if self._held.get(reservation.slot) is not reservation or reservation.expires_ns:
                raise ValueError("the slot is not one that is being written")
            reservation.expires_ns = self._lease_end_ns(lease_s)
            shape = self._segment.shape
            header = slots.SlotHeader(
                reservation.slot,
                reservation.generation,
                shape.incarnation,
                reservation.offset_bytes,
                reservation.size_bytes,
                reservation.expires_ns,
            )
            slots.write_header(self._segment.words, header)
            self._push_end(reservation)

    def payload(self, reservation: Reservation) -> U8Array:
        """The slot's memory, writable: for its writer before it is published."""
        start = reservation.offset_bytes
        return self._bytes[start : start + reservation.size_bytes]

    def discard(self, reservation: Reservation) -> None:
        """Free a slot that was never published; nothing if it was, or is freed already."""
        with self._lock:
            unpublished = reservation.expires_ns == 0
            if unpublished and self._held.get(reservation.slot) is reservation:
                self._free_slot(reservation)

    def renew(self, ticket: tensor_pb2.TensorTicket, lease_s: float) -> None:
        """Start the lease anew.

        Raises: StaleTicket when it has ended already.
        """
        with self._lock:
            self.check(ticket)
            reservation = self._held[ticket.slot]
            reservation.expires_ns = self._lease_end_ns(lease_s)
            slots.write_expiry(self._segment.words, ticket.slot, reservation.expires_ns)
            self._push_end(reservation)

    def release(self, ticket: tensor_pb2.TensorTicket) -> bool:
        """Free the ticket's slot. False when it was gone already."""
        with self._lock:
            reservation = self._held.get(ticket.slot)
            if (
                reservation is None
                or not reservation.expires_ns
                or reservation.generation != ticket.generation
                or ticket.incarnation != self._segment.shape.incarnation
            ):
                return False
            self._free_slot(reservation)
            return True

    def free_expired(self) -> int:
        """Free every slot whose lease has ended. Returns how many."""
        num_freed = 0
        now_ns = self._now_ns()
        with self._lock:
            while self._ends and self._ends[0][0] <= now_ns:
                _, slot, generation = heapq.heappop(self._ends)
                reservation = self._held.get(slot)
                if reservation is None or reservation.generation != generation:
                    continue
                if reservation.expires_ns <= now_ns:
                    self._free_slot(reservation)
                    num_freed += 1
        return num_freed

    def check(self, ticket: tensor_pb2.TensorTicket) -> U8Array:
        """The published bytes of a ticket, read-only, valid while `still_holds` says so.

        Raises: StaleTicket.
        """
        if self._closed:
            raise StaleTicket("the ticket's owner has closed")
        segment = self._segment
        header = slots.check_ticket(segment.words, segment.shape, ticket, self._now_ns())
        view = self._bytes[header.offset_bytes : header.offset_bytes + header.size_bytes]
        view.flags.writeable = False
        return view

    def still_holds(self, ticket: tensor_pb2.TensorTicket) -> bool:
        """Whether bytes copied since `check` are the ticket's."""
        return slots.read_generation(self._segment.words, ticket.slot) == ticket.generation

    def close(self) -> None:
        """Void all tickets and remove the segment. Arrays handed out stay mapped until dropped."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._segment.mark_closed()
            for reservation in self._held.values():
                slots.clear_header(self._segment.words, reservation.slot)
            self._held.clear()
            self._ends.clear()
            self._free = FreeList(self._free.span_bytes)
            self._segment.unlink()

    def _try_reserve(self, size_bytes: int) -> Reservation | None:
        slot = self._take_slot()
        if slot is None:
            return None
        offset = self._free.take(max(ALIGN_BYTES, round_up(size_bytes)))
        if offset is None:
            self._free_slots.append(slot)
            return None
        generation = self._next_generation
        self._next_generation += 1
        start = self._segment.shape.payload_start
        return Reservation(slot, generation, start + offset, size_bytes)

    def _take_slot(self) -> int | None:
        if self._free_slots:
            return self._free_slots.pop()
        if self._num_slots_used == self._segment.shape.num_slots:
            return None
        self._num_slots_used += 1
        return self._num_slots_used - 1

    def _backed(self, reservation: Reservation) -> Reservation:
        try:
            self._segment.back(reservation.offset_bytes, reservation.held_bytes)
        except BaseException:
            self.discard(reservation)
            raise
        return reservation

    def _free_slot(self, reservation: Reservation) -> None:
        del self._held[reservation.slot]
        slots.clear_header(self._segment.words, reservation.slot)
        start = self._segment.shape.payload_start
        self._free.give(reservation.offset_bytes - start, reservation.held_bytes)
        self._free_slots.append(reservation.slot)

    def _push_end(self, reservation: Reservation) -> None:
        entry = (reservation.expires_ns, reservation.slot, reservation.generation)
        if len(self._ends) > 64 + 2 * len(self._held):  # mostly entries of freed or renewed leases
            self._ends = [
                (r.expires_ns, r.slot, r.generation) for r in self._held.values() if r.expires_ns
            ]
            heapq.heapify(self._ends)
        else:
            heapq.heappush(self._ends, entry)

    def _lease_end_ns(self, lease_s: float) -> int:
        if not 0 < lease_s <= MAX_LEASE_S:
            raise ValueError(f"need 0 < lease_s <= {MAX_LEASE_S}; got {lease_s}")
        return self._now_ns() + int(lease_s * 1e9)

    def _now_ns(self) -> int:
        return int(self._clock.monotonic_s() * 1e9)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise NoCapacity("the tensor plane is closed")
