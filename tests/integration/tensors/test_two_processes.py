"""Tickets between real processes, over shared memory and over gRPC: the right bytes or an error."""

import asyncio
import contextlib
import random

import numpy as np
import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rorqual_proto.v1 import tensor_pb2
from rorqual_runtime.errors import Corrupt, NoCapacity, ServingError, StaleTicket
from rorqual_runtime.tensors.segment import SHM_DIR

from tests.support.tensor_process import CHURN_SIZES, HOST_ID, TensorProcess, content, open_plane
from tests.support.waiting import until

TRANSPORTS = pytest.mark.parametrize("host_id", [HOST_ID, "another-host"], ids=["shm", "grpc"])
SIZES = (0, 1, 1000, (1 << 20) - 1, 1 << 20, 5_000_003)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owner_process():
    async with TensorProcess.started(shm_bytes=12 << 20) as owner:
        yield owner


@pytest_asyncio.fixture(loop_scope="module")
async def owner(owner_process):
    yield owner_process
    await owner_process.call("reset")


@pytest_asyncio.fixture(loop_scope="module")
async def reader(host_id):
    async with await open_plane("reader", host_id=host_id, shm_bytes=1 << 20) as reader:
        yield reader


@TRANSPORTS
async def test_a_reader_gets_exactly_what_was_published(owner, reader):
    for size in SIZES:
        for checksum in (False, True):
            ticket = await owner.publish(size, seed=size, checksum=checksum)
            assert (ticket.xxh3_64 != 0) == checksum
            expected = content(size, size)
            assert np.array_equal(await reader.fetch(ticket), expected)
            into = bytearray(size)
            assert np.array_equal(await reader.fetch(ticket, into), expected)
            assert into == expected.tobytes()
            assert await reader.release_remote(ticket)


@TRANSPORTS
async def test_release_frees_at_the_owner_and_voids_the_ticket(owner, reader):
    ticket = await owner.publish(1000)
    assert await reader.release_remote(ticket)
    assert not await reader.release_remote(ticket)
    assert (await owner.call("state"))["held"] == 0
    with pytest.raises(StaleTicket):
        await reader.fetch(ticket)
    await owner.publish(1000, seed=2)  # in the same memory
    with pytest.raises(StaleTicket):
        await reader.fetch(ticket)


@TRANSPORTS
async def test_an_expired_lease_is_refused_and_swept(owner, reader):
    ticket = await owner.publish(1000, lease_s=0.2)
    await asyncio.sleep(0.25)
    with pytest.raises(StaleTicket):
        await reader.fetch(ticket)

    async def is_swept() -> bool:
        return not (await owner.call("state"))["held"]

    await until(is_swept)


@TRANSPORTS
async def test_a_ticket_of_another_incarnation_owner_or_size_is_refused(owner, reader):
    real = await owner.publish(1000)
    changes = [
        {"incarnation": 2},
        {"generation": real.generation + 1},
        {"slot": 2**40},
        {"size_bytes": 999},
        {"size_bytes": 2**50},
    ]
    for change in changes:
        forged = tensor_pb2.TensorTicket()
        forged.CopyFrom(real)
        for name, value in change.items():
            setattr(forged, name, value)
        with pytest.raises(StaleTicket):
            await reader.fetch(forged)
    assert np.array_equal(await reader.fetch(real), content(0, 1000))


@TRANSPORTS
async def test_forged_offsets_do_not_matter(owner, reader):
    """Only the owner's slot table says where the bytes are."""
    ticket = await owner.publish(1000)
    for endpoint in ticket.endpoints:
        if endpoint.HasField("shm"):
            endpoint.shm.offset_bytes = endpoint.shm.header_offset_bytes = 2**60
    assert np.array_equal(await reader.fetch(ticket), content(0, 1000))


@pytest.mark.parametrize("host_id", [HOST_ID])
@pytest.mark.parametrize(
    "name", ["", "../../etc/passwd", "rorqual-tensors-" + "0" * 32, "rorqual-tensors-/etc"]
)
async def test_a_segment_that_is_not_here_is_read_over_the_network(owner, reader, name):
    """Two containers may share a kernel but not /dev/shm."""
    ticket = await owner.publish(1000)
    ticket.endpoints[0].shm.segment = name
    assert np.array_equal(await reader.fetch(ticket), content(0, 1000))
    assert reader.num_attached == 0
    del ticket.endpoints[1]
    with pytest.raises(StaleTicket):
        await reader.fetch(ticket)


@TRANSPORTS
async def test_a_buffer_of_another_size_is_refused_before_anything_is_read(owner, reader):
    ticket = await owner.publish(1000)
    into = bytearray(999)
    with pytest.raises(Corrupt):
        await reader.fetch(ticket, into)
    assert not any(into)


@TRANSPORTS
async def test_a_wrong_checksum_is_corrupt(owner, reader):
    for size in (1000, 3 << 20):
        ticket = await owner.publish(size, checksum=True)
        ticket.xxh3_64 ^= 1
        with pytest.raises(Corrupt):
            await reader.fetch(ticket)


@TRANSPORTS
async def test_memory_that_is_reused_all_the_time_never_shows_anothers_bytes(owner, reader):
    """The owner frees and refills slots while the reader, always a little late, copies them."""
    dice = random.Random(3)
    into = np.empty(max(CHURN_SIZES), np.uint8)
    outcomes = {"read": 0, "stale": 0}

    async def fetch(ticket: tensor_pb2.TensorTicket, tag: int) -> None:
        try:
            data = await reader.fetch(ticket, into[: ticket.size_bytes])
        except StaleTicket:
            outcomes["stale"] += 1
        else:
            outcomes["read"] += 1
            assert data.min() == data.max() == tag

    recent: list[tuple[tensor_pb2.TensorTicket, int]] = []
    for burst in range(40):
        async for ticket, tag in owner.churn(40, seed=burst):
            recent = [*recent[-40:], (ticket, tag)]
            await fetch(*dice.choice(recent[-6:] if dice.random() < 0.7 else recent))
        data = await reader.fetch(ticket, into[: ticket.size_bytes])
        assert data.min() == data.max() == tag
    assert min(outcomes.values()) > 20, outcomes
    await owner.call("reset")
    assert (await owner.call("state"))["held_bytes"] == 0


async def test_a_full_arena_is_refused_and_recovers():
    async with await open_plane("small", shm_bytes=1 << 20) as plane:
        ticket = await plane.publish(bytes(1 << 20))
        for _ in range(3):
            with pytest.raises(NoCapacity):
                await plane.publish(b"x")
            with pytest.raises(NoCapacity):
                plane.allocate(1)
            with pytest.raises(NoCapacity):
                await plane.publish(bytes(2 << 20))
        assert plane.num_held == 1
        plane.release(ticket)
        assert plane.num_held_bytes == 0
        await plane.publish(bytes(1 << 20))


async def test_filling_in_place_and_giving_up():
    async with (
        await open_plane("owner", shm_bytes=1 << 20) as owner,
        await open_plane("reader", shm_bytes=1 << 20) as reader,
    ):
        with owner.allocate(24, dtype="float32", shape=(2, 3)) as slot:
            slot.view[:] = np.arange(6, dtype=np.float32).tobytes()
            ticket = slot.seal(checksum=True)
        assert (ticket.dtype, list(ticket.shape)) == ("float32", [2, 3])
        data = await reader.fetch(ticket)
        assert data.view(np.float32).tolist() == [0, 1, 2, 3, 4, 5]
        with pytest.raises(ValueError):
            slot.view[0] = 1
        with contextlib.suppress(RuntimeError), owner.allocate(1000):
            raise RuntimeError("the writer failed")
        assert owner.num_held == 1
        with pytest.raises(ValueError):
            owner.allocate(25, dtype="float32")
        owner.release(ticket)
        assert owner.num_held_bytes == 0


async def test_renewal_by_the_owner_keeps_an_old_ticket_good():
    async with (
        await open_plane("owner", shm_bytes=1 << 20) as owner,
        await open_plane("reader", shm_bytes=1 << 20) as reader,
    ):
        ticket = await owner.publish(b"abc", lease_s=1.0)
        copy = tensor_pb2.TensorTicket.FromString(ticket.SerializeToString())
        owner.renew(ticket, 30)
        assert ticket.expires_unix_s > copy.expires_unix_s + 20
        await asyncio.sleep(1.6)  # past the old end, and past a sweep
        assert bytes(await reader.fetch(copy)) == b"abc"


async def test_cancelled_publishing_leaves_nothing_held():
    async with await open_plane("owner", shm_bytes=64 << 20) as owner:
        data = np.zeros(30 << 20, np.uint8)
        for delay_s in (0, 0.0005, 0.002, 0.005):
            task = asyncio.create_task(owner.publish(data))
            await asyncio.sleep(delay_s)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                owner.release(await task)
            assert owner.num_held == 0


async def test_segments_go_with_their_owner_and_with_a_restart_after_a_kill():
    async with TensorProcess.started() as first:
        closed = (await first.publish(10)).endpoints[0].shm.segment
    assert not (SHM_DIR / closed).exists()
    async with TensorProcess.started() as second:
        ticket = await second.publish(10)
        killed = SHM_DIR / ticket.endpoints[0].shm.segment
        assert killed.exists()
        await second.kill()
    async with (
        TensorProcess.started(incarnation=2) as third,
        await open_plane("reader", shm_bytes=1 << 20) as reader,
    ):
        alive = SHM_DIR / (await third.publish(10)).endpoints[0].shm.segment
        assert alive.exists() and not killed.exists()
        with pytest.raises(ServingError):
            await reader.fetch(ticket)


async def test_a_restarted_owner_at_the_same_address_refuses_tickets_of_its_former_self():
    async with (
        await open_plane("owner", incarnation=1, shm_bytes=1 << 20) as former,
        await open_plane("owner", incarnation=2, shm_bytes=1 << 20) as present,
        await open_plane("reader", host_id="elsewhere", shm_bytes=1 << 20) as reader,
    ):
        old, new = await former.publish(b"old"), await present.publish(b"new")
        old.endpoints[1].grpc.address = present.address
        old.slot, old.generation = new.slot, new.generation
        with pytest.raises(StaleTicket):
            await reader.fetch(old)
        assert not await reader.release_remote(old)
        assert bytes(await reader.fetch(new)) == b"new"


async def test_a_reader_lets_go_of_segments_whose_owner_has_died():
    async with await open_plane("reader", shm_bytes=1 << 20) as reader:
        async with TensorProcess.started() as owner:
            ticket = await owner.publish(10)
            await reader.fetch(ticket)
            assert reader.num_attached == 1
            await owner.kill()
            await until(lambda: not reader.num_attached)
        with pytest.raises(ServingError):
            await reader.fetch(ticket)


async def test_a_fetch_is_one_trace_at_both_ends():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    async with (
        await open_plane("owner", shm_bytes=1 << 20, tracer=tracer) as owner,
        await open_plane("reader", host_id="elsewhere", shm_bytes=1 << 20, tracer=tracer) as reader,
    ):
        await reader.fetch(await owner.publish(b"abc"))
    spans = {span.name: span for span in exporter.get_finished_spans()}
    fetch, read = spans["tensor.fetch"], spans["tensor.read"]
    assert read.parent is not None and read.parent.span_id == fetch.context.span_id
    assert read.context.trace_id == fetch.context.trace_id
    assert fetch.attributes["rorqual.tensor.transport"] == "grpc"
