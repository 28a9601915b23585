"""A subscription is the broker's before `subscribe` returns, however slow the connection is."""

from __future__ import annotations

import asyncio

from rorqual_proto.v1 import router_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus, MessageContext
from rorqual_runtime.settings import RuntimeSettings

from tests.support.bus import answer_place, serve_place
from tests.support.relay import relay_to
from tests.support.servers import NatsServer
from tests.support.waiting import soon


async def test_what_others_publish_after_subscribe_is_received(
    nats_server: NatsServer, caller_bus: Bus
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def handler(message: router_pb2.CancelRequest, _context: MessageContext) -> None:
        heard.put_nowait(message.request_id)

    async with relay_to(nats_server.port) as relay:
        bus = await Bus.connect(RuntimeSettings(nats_url=relay.url), "slow")
        relay.holds_after_ping = True
        await soon(bus.subscribe(subjects.cancel(), router_pb2.CancelRequest, handler))
        await caller_bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="first"))
        await caller_bus.connection.flush()
        relay.released.set()
        assert await soon(heard.get()) == "first"
        await bus.close()


async def test_a_subject_is_served_when_serve_returns(
    nats_server: NatsServer, caller_bus: Bus
) -> None:
    async with relay_to(nats_server.port) as relay:
        bus = await Bus.connect(RuntimeSettings(nats_url=relay.url), "slow")
        await bus.start_micro()
        relay.holds_after_ping = True
        await soon(serve_place(bus, answer_place))
        once = caller_bus.connection.request_once(  # raises NoResponders where nobody serves
            subjects.router_place(), b"", {}, 30.0
        )
        asked = asyncio.create_task(once)
        await caller_bus.connection.flush()
        relay.released.set()
        reply = router_pb2.PlaceReply.FromString((await soon(asked)).data)
        assert reply.placement.decode_id == "decode-"
        await bus.close()
