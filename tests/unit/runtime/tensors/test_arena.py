"""Leases, bounds and forged tickets, in one process with a clock in the test's hand."""

import errno

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_proto.v1 import tensor_pb2
from rorqual_runtime.clock import ManualClock
from rorqual_runtime.errors import NoCapacity, StaleTicket
from rorqual_runtime.tensors.arena import Arena
from rorqual_runtime.tensors.segment import SHM_DIR

CAPACITY = 1 << 20


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def arena(clock):
    arena = Arena(CAPACITY, incarnation=7, clock=clock)
    yield arena
    arena.close()


def put(arena: Arena, data: bytes, lease_s: float = 10.0) -> tensor_pb2.TensorTicket:
    reservation = arena.reserve(len(data))
    arena.payload(reservation)[:] = np.frombuffer(data, np.uint8)
    arena.publish(reservation, lease_s)
    return tensor_pb2.TensorTicket(
        owner_id="me",
        incarnation=7,
        slot=reservation.slot,
        generation=reservation.generation,
        size_bytes=len(data),
    )


def read(arena: Arena, ticket: tensor_pb2.TensorTicket) -> bytes:
    return arena.check(ticket).tobytes()


def test_a_released_ticket_is_stale_also_after_its_memory_is_reused(arena):
    old = put(arena, b"a" * 1000)
    assert read(arena, old) == b"a" * 1000
    assert arena.release(old)
    new = put(arena, b"b" * 1000)
    assert new.slot == old.slot
    with pytest.raises(StaleTicket):
        read(arena, old)
    assert not arena.release(old)
    assert read(arena, new) == b"b" * 1000


async def test_a_lease_ends_at_its_time_even_before_anybody_sweeps(arena, clock):
    ticket = put(arena, b"x", lease_s=10)
    await clock.advance(9.9)
    assert read(arena, ticket) == b"x"
    await clock.advance(0.2)
    with pytest.raises(StaleTicket):
        read(arena, ticket)
    with pytest.raises(StaleTicket):
        arena.renew(ticket, 10)
    assert arena.free_expired() == 1
    assert arena.num_held == 0 and arena.num_held_bytes == 0


async def test_renewal_keeps_a_slot_and_the_sweeper_respects_it(arena, clock):
    ticket = put(arena, b"x", lease_s=10)
    for _ in range(500):
        await clock.advance(5)
        arena.renew(ticket, 10)
        assert arena.free_expired() == 0
    assert read(arena, ticket) == b"x"
    await clock.advance(10.1)
    assert arena.free_expired() == 1


async def test_full_is_refused_until_a_lease_has_ended(arena, clock):
    put(arena, bytes(CAPACITY // 2), lease_s=5)
    put(arena, bytes(CAPACITY // 2), lease_s=50)
    with pytest.raises(NoCapacity):
        arena.reserve(1)
    await clock.advance(6)
    assert arena.reserve(CAPACITY // 2) is not None


def test_slots_are_bounded_too(arena):
    with pytest.raises(NoCapacity):
        for _ in range(CAPACITY):
            arena.reserve(0)
    assert arena.num_held == 64


def test_a_slot_being_written_has_no_ticket_and_no_lease(arena):
    reservation = arena.reserve(10)
    guess = tensor_pb2.TensorTicket(
        incarnation=7, slot=reservation.slot, generation=reservation.generation, size_bytes=10
    )
    with pytest.raises(StaleTicket):
        read(arena, guess)
    assert not arena.release(guess)
    assert arena.free_expired() == 0
    arena.discard(reservation)
    arena.discard(reservation)
    assert arena.num_held == 0


def test_publishing_twice_or_after_discard_is_refused(arena):
    reservation = arena.reserve(10)
    arena.publish(reservation, 5)
    with pytest.raises(ValueError):
        arena.publish(reservation, 5)
    gone = arena.reserve(10)
    arena.discard(gone)
    with pytest.raises(ValueError):
        arena.publish(gone, 5)
    with pytest.raises(ValueError):
        arena.publish(arena.reserve(10), 0)


def test_close_voids_every_ticket_and_removes_the_segment(clock):
    arena = Arena(CAPACITY, incarnation=7, clock=clock)
    ticket = put(arena, b"x")
    segment = SHM_DIR / arena.segment_name
    assert segment.exists()
    arena.close()
    assert not segment.exists()
    with pytest.raises(StaleTicket):
        read(arena, ticket)
    with pytest.raises(NoCapacity):
        arena.reserve(1)


@settings(max_examples=300)
@given(
    slot=st.integers(0, 200) | st.integers(0, 2**64 - 1),
    generation=st.integers(-2, 8) | st.integers(0, 2**63),
    incarnation=st.sampled_from((7, 7, 7, 0, 8, 2**63)),
    size=st.sampled_from((100, 100, 0, 99, 101, 4096, 2**63)),
)
def test_a_forged_ticket_yields_the_bytes_of_a_real_one_or_nothing(
    slot, generation, incarnation, size
):
    arena = Arena(CAPACITY, incarnation=7, clock=ManualClock())
    try:
        real = [put(arena, bytes([n]) * 100) for n in range(5)]
        forged = tensor_pb2.TensorTicket(
            slot=slot,
            generation=(real[0].generation + generation) % 2**64,
            incarnation=incarnation,
            size_bytes=size,
        )
        same = [t for t in real if (t.slot, t.generation) == (forged.slot, forged.generation)]
        try:
            data = read(arena, forged)
        except StaleTicket:
            assert not same or (incarnation, size) != (7, 100)
        else:
            assert same and data == bytes([real.index(same[0])]) * 100
    finally:
        arena.close()


def test_full_shared_memory_is_refused_before_it_is_touched(arena, monkeypatch):
    """A page the kernel cannot give would kill the process."""

    def no_space(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    held = put(arena, b"x")
    arena._segment._backed[1:] = bytes(len(arena._segment._backed) - 1)
    monkeypatch.setattr("os.posix_fallocate", no_space)
    with pytest.raises(NoCapacity):
        arena.reserve(CAPACITY - 4096)
    assert arena.num_held == 1 and read(arena, held) == b"x"
