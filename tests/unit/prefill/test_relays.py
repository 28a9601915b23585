"""Who may read blocks for us: decode instances of other hosts, as quick as measured."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from rorqual_prefill.relays import Relays
from rorqual_proto.v1 import decode_pb2, load_pb2
from rorqual_runtime.clock import ManualClock
from rorqual_runtime.errors import Unavailable

BLOCK_BYTES = 1000


class Bus:
    """Answers like a relay that takes 1 s and has every second block, or none; or not at all."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.is_there, self.is_empty = clock, True, False

    async def request(self, subject, message, reply_type, **waits):
        if not self.is_there:
            raise Unavailable("nobody")
        await self.clock.advance(1.0)
        num_keys = len(message.packed_keys) // 16
        is_read = bytes(number % 2 and not self.is_empty for number in range(num_keys))
        reply = decode_pb2.BlockReadReply(is_read=is_read)
        reply.blocks.size_bytes = num_keys * BLOCK_BYTES
        return reply


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bus(clock) -> Bus:
    return Bus(clock)


@pytest.fixture
def relays(bus, clock) -> Relays:
    async def fetch(ticket, *, timeout_s):
        return np.full(ticket.size_bytes, 7, np.uint8)

    ctx = SimpleNamespace(
        bus=bus,
        clock=clock,
        settings=SimpleNamespace(host_id="here"),
        tensors=SimpleNamespace(fetch=fetch),
        track=lambda coroutine: coroutine.close(),
    )
    return Relays(ctx, "model", BLOCK_BYTES, lambda: "ours")  # type: ignore[arg-type]


async def hear(relays: Relays, name: str, host: str = "there", **fields) -> None:
    relay = {"host_id": host, "store_id": "ours", **fields.pop("relay", {})}
    fields = {"model_fingerprint": "model", **fields}
    await relays.on_load(
        load_pb2.LoadReport(instance_id=name, relay=relay, **fields),
        None,  # type: ignore[arg-type]
    )


async def test_only_live_ones_of_the_model_on_other_hosts_are_asked(relays, clock) -> None:
    await hear(relays, "near", "here")
    await hear(relays, "far", relay={"queued_bytes": 5, "bytes_per_s": 100.0})
    await hear(relays, "leaving", draining=True)
    await hear(relays, "other", model_fingerprint="another")
    await hear(relays, "elsewhere", relay={"store_id": "theirs"})
    assert relays.sources(40.0) == [("far", 50.0, 5)]
    await hear(relays, "far")
    assert relays.sources(40.0) == [("far", 20.0, 0)]
    await clock.advance(3.0)
    assert relays.sources(40.0) == []


async def test_its_rate_is_measured_and_a_failure_gives_it_a_rest(relays, bus, clock) -> None:
    await hear(relays, "far")
    blocks = np.zeros((4, BLOCK_BYTES), np.uint8)
    wanted = [(bytes(16), block) for block in blocks]
    assert await relays.read("far", wanted) == [False, True, False, True]
    assert blocks[:, 0].tolist() == [0, 7, 0, 7]
    assert relays.sources(0.0) == [("far", 2000.0, 0)]
    bus.is_there = False
    assert await relays.read("far", wanted) == [False] * 4
    assert relays.sources(0.0) == []
    await hear(relays, "far")
    assert relays.sources(0.0) == [], "it has just failed"
    await clock.advance(31.0)
    await hear(relays, "far")
    assert [source.name for source in relays.sources(0.0)] == ["far"]


async def test_one_that_has_none_of_the_blocks_is_not_called_quick(relays, bus, clock) -> None:
    """It may read a store of its own."""
    await hear(relays, "far")
    bus.is_empty = True
    block = np.zeros(BLOCK_BYTES, np.uint8)
    assert await relays.read("far", [(bytes(16), block)]) == [False]
    assert relays.sources(0.0) == []
