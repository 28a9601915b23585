"""Peers that die, hang, lie or lose patience in the middle of a transfer."""

import asyncio
import contextlib
import signal
from concurrent.futures import Future

import grpc
import grpc.aio
import numpy as np
import pytest
from rorqual_cli.chaos.relay import open_relay
from rorqual_runtime.clock import WallClock
from rorqual_runtime.errors import Corrupt, DeadlineExceeded, StaleTicket, Unavailable
from rorqual_runtime.tensors.attachments import Attachments
from rorqual_runtime.tensors.grpc_server import CHANNEL_OPTIONS, SERVICE_NAME

from tests.support.tensor_process import TensorProcess, content, open_plane
from tests.support.waiting import WAIT_S, soon, until

BIG = 96 << 20


@pytest.fixture
async def owner():
    async with TensorProcess.started(shm_bytes=128 << 20) as owner:
        yield owner


@pytest.fixture
async def reader():
    async with await open_plane(
        "reader", host_id="elsewhere", shm_bytes=1 << 20, stall_timeout_s=WAIT_S
    ) as reader:
        yield reader


@pytest.fixture
async def impatient_reader():
    async with await open_plane(
        "reader", host_id="elsewhere", shm_bytes=1 << 20, stall_timeout_s=1.0
    ) as reader:
        yield reader


async def hang_mid_transfer(owner, reader, ticket, into=None):
    """A fetch whose owner has stopped after the first bytes."""
    into = np.zeros(ticket.size_bytes, np.uint8) if into is None else into
    fetching = asyncio.create_task(reader.fetch(ticket, into))
    while not into[0]:
        await asyncio.sleep(0)
    owner.signal(signal.SIGSTOP)
    return fetching


async def test_an_owner_killed_mid_transfer_is_unavailable_soon(owner, reader):
    ticket = await owner.publish(BIG)
    fetching = await hang_mid_transfer(owner, reader, ticket)
    assert not fetching.done()
    await owner.kill()
    for call in (fetching, reader.fetch(ticket), reader.release_remote(ticket)):
        with pytest.raises(Unavailable):
            await soon(call, WAIT_S / 2)


async def test_a_hung_owner_is_unavailable_and_is_asked_again_once_it_is_back(
    owner, impatient_reader
):
    reader = impatient_reader
    ticket = await owner.publish(BIG)
    fetching = await hang_mid_transfer(owner, reader, ticket)
    with pytest.raises(Unavailable):
        await soon(fetching)
    with pytest.raises(Unavailable):
        await soon(reader.fetch(ticket))
    with pytest.raises(DeadlineExceeded):
        await soon(reader.fetch(ticket, timeout_s=0.1))
    owner.signal(signal.SIGCONT)
    small = await owner.publish(1000, seed=5)
    assert np.array_equal(await reader.fetch(small), content(5, 1000))


async def test_a_half_open_link_is_given_up_and_made_anew(owner):
    async with (
        open_relay() as relay,
        await open_plane(
            "reader", host_id="elsewhere", shm_bytes=1 << 20, stall_timeout_s=4 * WAIT_S
        ) as reader,
    ):
        ticket = await owner.publish(1000, seed=5)
        (link,) = (each.grpc for each in ticket.endpoints if each.HasField("grpc"))
        relay.target_port = int(link.address.rpartition(":")[2])
        link.address = f"127.0.0.1:{relay.port}"
        assert np.array_equal(await reader.fetch(ticket), content(5, 1000))
        relay.freeze()
        with pytest.raises(Unavailable, match="UNAVAILABLE"):
            await soon(reader.fetch(ticket))
        assert np.array_equal(await soon(reader.fetch(ticket)), content(5, 1000))


async def test_a_cancelled_fetch_frees_both_ends_and_leaves_the_buffer_alone(owner, reader):
    ticket = await owner.publish(BIG)
    into = np.zeros(BIG, np.uint8)
    fetching = await hang_mid_transfer(owner, reader, ticket, into)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    into[:] = 0
    owner.signal(signal.SIGCONT)

    async def nobody_reads() -> bool:
        return not (await owner.call("state"))["reading"]

    await until(nobody_reads)
    assert not into.any()
    assert (await owner.call("state"))["held"] == 1
    assert await reader.release_remote(ticket)
    assert (await owner.call("state"))["held_bytes"] == 0


async def test_a_cancelled_fetch_does_not_harm_others_on_the_same_link(owner, reader):
    ticket = await owner.publish(BIG)
    doomed = [asyncio.create_task(reader.fetch(ticket)) for _ in range(3)]
    kept = asyncio.create_task(reader.fetch(ticket))
    await asyncio.sleep(0.02)
    for task in doomed:
        task.cancel()
    assert np.array_equal(await kept, content(0, BIG))
    await asyncio.gather(*doomed, return_exceptions=True)


async def test_released_mid_transfer_is_stale_not_torn(reader):
    async with await open_plane("owner", shm_bytes=128 << 20) as owner:
        ticket = await owner.publish(np.full(BIG, 1, np.uint8))
        into = np.zeros(BIG, np.uint8)
        fetching = asyncio.create_task(reader.fetch(ticket, into))
        while not into[0]:
            await asyncio.sleep(0)
        owner.release(ticket)
        await owner.publish(np.full(BIG, 2, np.uint8))
        with pytest.raises(StaleTicket):
            await fetching


class ReleasingExecutor:
    """Runs a copy, then lets the owner free the slot before the reader looks again."""

    def __init__(self, release) -> None:
        self._release = release

    def submit(self, copy):
        done: Future = Future()
        done.set_result(copy())
        self._release()
        return done


async def test_shared_memory_released_during_the_copy_is_stale():
    async with await open_plane("owner", shm_bytes=16 << 20) as owner:
        for checksum in (False, True):
            ticket = await owner.publish(np.full(5 << 20, 1, np.uint8), checksum=checksum)
            executor = ReleasingExecutor(lambda ticket=ticket: owner.release(ticket))
            attachments = Attachments(WallClock(), executor)
            shm = ticket.endpoints[0].shm
            assert attachments.attach(shm)
            with pytest.raises(StaleTicket):
                await attachments.read(shm.segment, ticket, None)
            attachments.close()


@contextlib.asynccontextmanager
async def relay(address: str, change):
    """A gRPC hop in front of an owner that passes every frame through `change`."""
    options = CHANNEL_OPTIONS
    async with grpc.aio.insecure_channel(address, options=options) as upstream:
        read = upstream.unary_stream(f"/{SERVICE_NAME}/Read")

        async def on_read(request, context):
            async for frame in read(request):
                for changed in change(frame):
                    yield changed

        handler = grpc.unary_stream_rpc_method_handler(on_read)
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE_NAME, {"Read": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(0)


def flip(frame: bytes) -> list[bytes]:
    changed = bytearray(frame)
    changed[len(frame) // 2] ^= 4
    return [bytes(changed)]


@pytest.mark.parametrize(
    "change",
    [flip, lambda frame: [frame, frame], lambda frame: [], lambda frame: [b"junk"]],
    ids=["flipped", "doubled", "lost", "junk"],
)
async def test_damage_on_the_way_is_found(owner, reader, change):
    ticket = await owner.publish(3_000_000)
    async with relay(ticket.endpoints[1].grpc.address, change) as address:
        ticket.endpoints[1].grpc.address = address
        with pytest.raises(Corrupt):
            await reader.fetch(ticket)


async def test_an_owner_that_closes_answers_readers_at_once(reader):
    owner = await open_plane("owner", shm_bytes=128 << 20)
    ticket = await owner.publish(np.full(BIG, 1, np.uint8))
    into = np.zeros(BIG, np.uint8)
    fetching = asyncio.create_task(reader.fetch(ticket, into))
    while not into[0]:
        await asyncio.sleep(0)
    await owner.close()
    with pytest.raises((StaleTicket, Unavailable)):
        await soon(fetching)


async def test_nobody_listening_is_unavailable_at_once(owner, reader):
    ticket = await owner.publish(10)
    ticket.endpoints[1].grpc.address = "127.0.0.1:1"
    for _ in range(3):
        with pytest.raises(Unavailable):
            await soon(reader.fetch(ticket), WAIT_S / 2)
