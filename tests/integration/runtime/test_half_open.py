"""A connection that is alive at both ends while nothing passes: both ends give it up in seconds."""

from __future__ import annotations

from pathlib import Path

from rorqual_cli.chaos.relay import open_relay
from rorqual_proto.v1 import router_pb2
from rorqual_runtime.bus import Bus, MessageContext
from rorqual_runtime.errors import ServingError
from rorqual_runtime.identities.broker import liveness
from rorqual_runtime.settings import RuntimeSettings

from tests.support import servers
from tests.support.bus import answer_place, ask_place, serve_place
from tests.support.waiting import until

NUM_ASKED = 12
"""In a row: one of two would have got nearly none of them by chance."""


async def test_who_is_cut_off_comes_back_and_is_asked_no_more_where_it_was(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text(liveness())
    answered = {"router-1": 0, "router-2": 0}

    async def serve(bus: Bus) -> None:
        async def answer(
            request: router_pb2.PlaceRequest, context: MessageContext
        ) -> router_pb2.PlaceReply:
            answered[bus.instance_id] += 1
            return await answer_place(request, context)

        await serve_place(bus, answer)

    async def all_are_answered() -> bool:
        before = dict(answered)
        try:
            for number in range(NUM_ASKED):
                await ask_place(caller, str(number), timeout_s=0.5)
        except ServingError:  # the broker gave it to the one that is cut off
            return False
        return all(answered[name] > before[name] for name in answered)

    async with (
        servers.nats_server(tmp_path, extra_args=["-c", str(config)]) as nats,
        open_relay() as relay,
    ):
        relay.target_port = nats.port
        direct = RuntimeSettings(nats_url=nats.url, home=tmp_path / "home")
        relayed = direct.model_copy(update={"nats_url": f"nats://127.0.0.1:{relay.port}"})
        caller = await Bus.connect(direct, "caller")
        buses = [
            await Bus.connect(settings, "router", instance_id=name)
            for settings, name in ((direct, "router-1"), (relayed, "router-2"))
        ]
        for bus in buses:
            await serve(bus)
        await until(all_are_answered, "two that answer")
        relay.freeze()
        await until(all_are_answered, "two that answer, and no third one that doesn't")
        for bus in (*buses, caller):
            await bus.close()
