"""The slot table: one 64-byte header for each published tensor, read by other processes.

Words of a header: generation, incarnation, payload offset, payload size, lease end in monotonic
nanoseconds (one clock for all processes of a host). Generation 0 means free. The owner writes the
generation last and clears it first; a generation is never used twice. A reader that finds the
ticket's generation before and after its copy has therefore copied that ticket's bytes.

The table lies outside the payload area, so no payload can pass for a header.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from rorqual_proto.v1 import tensor_pb2

from rorqual_runtime.errors import StaleTicket
from rorqual_runtime.tensors.segment import HEADER_BYTES, SLOT_BYTES, SegmentShape

_WORDS = SLOT_BYTES // 8
_FIRST_WORD = HEADER_BYTES // 8
_GENERATION, _INCARNATION, _OFFSET, _SIZE, _EXPIRES = range(5)
_fence_lock = threading.Lock()


def memory_fence() -> None:
    """Order the stores and loads before against those after, on weakly ordered processors too.

    A release followed by an acquire of one lock is a full barrier on all that Python runs on.
    """
    with _fence_lock:
        pass
    with _fence_lock:
        pass


@dataclass(frozen=True)
class SlotHeader:
    """What the table says about a slot in use."""

    slot: int
    generation: int
    incarnation: int
    offset_bytes: int
    size_bytes: int
    expires_ns: int


def write_header(words: memoryview, header: SlotHeader) -> None:
    """Make a filled slot visible to readers."""
    base = _FIRST_WORD + header.slot * _WORDS
    words[base + _INCARNATION] = header.incarnation
    words[base + _OFFSET] = header.offset_bytes
    words[base + _SIZE] = header.size_bytes
    words[base + _EXPIRES] = header.expires_ns
    memory_fence()
    words[base + _GENERATION] = header.generation


def write_expiry(words: memoryview, slot: int, expires_ns: int) -> None:
    words[_FIRST_WORD + slot * _WORDS + _EXPIRES] = expires_ns


def clear_header(words: memoryview, slot: int) -> None:
    """Void every reference to the slot; its memory may be reused after this returns."""
    words[_FIRST_WORD + slot * _WORDS + _GENERATION] = 0
    memory_fence()


def read_generation(words: memoryview, slot: int) -> int:
    """The generation after everything read so far has really been read."""
    memory_fence()
    return int(words[_FIRST_WORD + slot * _WORDS + _GENERATION])


def check_ticket(
    words: memoryview, shape: SegmentShape, ticket: tensor_pb2.TensorTicket, now_ns: int
) -> SlotHeader:
    """The header of the ticket's slot, if it still holds what the ticket refers to.

    Raises: StaleTicket when it is freed, reused, expired, of another incarnation, or when the
        ticket's numbers are not the owner's (nothing outside the segment is ever touched).
    """
    slot = ticket.slot
    if slot >= shape.num_slots or ticket.incarnation != shape.incarnation:
        raise StaleTicket("the ticket is of another incarnation of its owner")
    base = _FIRST_WORD + slot * _WORDS
    generation = words[base + _GENERATION]
    memory_fence()
    header = SlotHeader(
        slot,
        generation,
        words[base + _INCARNATION],
        words[base + _OFFSET],
        words[base + _SIZE],
        words[base + _EXPIRES],
    )
    if generation == 0 or generation != ticket.generation:
        raise StaleTicket("the ticket's data has been released")
    if header.size_bytes != ticket.size_bytes or header.incarnation != ticket.incarnation:
        raise StaleTicket("the ticket does not describe the data in its slot")
    end = header.offset_bytes + header.size_bytes
    if header.offset_bytes < shape.payload_start or end > shape.size_bytes:
        raise StaleTicket("the ticket points outside its segment")
    if header.expires_ns <= now_ns:
        raise StaleTicket("the ticket's lease has expired")
    return header
