"""Payloads: inline while small, by ticket above, released once read."""

import pytest
from rorqual_proto.v1 import tensor_pb2
from rorqual_runtime.errors import Corrupt, NoCapacity, RequestTooLarge, StaleTicket
from rorqual_runtime.payload import get_payload, put_payload

from tests.support.tensor_process import open_plane

LIMIT = 49_152


@pytest.fixture
async def sender():
    async with await open_plane("sender", shm_bytes=1 << 20) as sender:
        yield sender


@pytest.fixture(params=["test-host", "elsewhere"])
async def receiver(request):
    async with await open_plane("receiver", host_id=request.param, shm_bytes=1 << 20) as receiver:
        yield receiver


@pytest.mark.parametrize("size", [0, 1, LIMIT, LIMIT + 1, 500_000])
async def test_what_was_put_is_got_and_nothing_stays(sender, receiver, size):
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    payload = await put_payload(sender, data)
    assert payload.WhichOneof("body") == ("inline" if size <= LIMIT else "ticket")
    assert payload.ByteSize() < 64 << 10
    assert await get_payload(receiver, payload) == data
    assert sender.num_held == 0


async def test_keep_leaves_it_for_the_next_reader(sender, receiver):
    payload = await put_payload(sender, bytes(LIMIT + 1))
    for _ in range(2):
        assert await get_payload(receiver, payload, keep=True) == bytes(LIMIT + 1)
    await get_payload(receiver, payload)
    with pytest.raises(StaleTicket):
        await get_payload(receiver, payload)


async def test_too_large_is_refused_before_it_is_read(sender, receiver):
    for size in (100, LIMIT + 1):
        payload = await put_payload(sender, bytes(size))
        with pytest.raises(RequestTooLarge) as caught:
            await get_payload(receiver, payload, max_bytes=99)
        assert (caught.value.size, caught.value.limit) == (size, 99)


async def test_no_body_and_no_room_are_typed(sender, receiver):
    with pytest.raises(Corrupt):
        await get_payload(receiver, tensor_pb2.Payload())
    with pytest.raises(NoCapacity):
        await put_payload(sender, bytes(2 << 20))
