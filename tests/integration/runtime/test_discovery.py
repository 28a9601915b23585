"""`$SRV.PING`, `$SRV.INFO` and `$SRV.STATS` have the shape that the standard `nats` tool reads."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from rorqual_runtime.bus import Bus, MessageContext
from rorqual_runtime.discovery import discover
from rorqual_runtime.errors import NotFound
from rorqual_runtime.service import open_service
from rorqual_runtime.settings import RuntimeSettings

from tests.support.bus import answer_place, ask_place, discovered, serve_place
from tests.support.waiting import WAIT_S


async def ask(bus: Bus, subject: str) -> dict[str, Any]:
    msg = await bus.connection.request(subject, b"", {}, timeout_s=WAIT_S)
    return dict(json.loads(msg.data))


@pytest.mark.parametrize("target", ["", ".rorqual-router", ".rorqual-router.router-1"])
async def test_ping_info_and_stats_answer_for_all_a_name_and_an_id(
    server_bus: Bus, caller_bus: Bus, target: str
) -> None:
    await serve_place(server_bus, answer_place)
    for verb in ("PING", "INFO", "STATS"):
        reply = await ask(caller_bus, f"$SRV.{verb}{target}")
        assert reply["type"] == f"io.nats.micro.v1.{verb.lower()}_response"
        assert (reply["name"], reply["id"]) == ("rorqual-router", "router-1")
        assert reply["version"].count(".") == 2
        assert all(isinstance(v, str) for v in reply["metadata"].values())


async def test_info_lists_the_endpoints(server_bus: Bus, caller_bus: Bus) -> None:
    await serve_place(server_bus, answer_place)
    info = await ask(caller_bus, "$SRV.INFO.rorqual-router")
    assert info["description"]
    assert info["endpoints"] == [
        {"name": "place", "subject": "rorqual.v1.router.place", "queue_group": "q", "metadata": {}}
    ]


async def test_stats_are_true(server_bus: Bus, caller_bus: Bus) -> None:
    async def handler(request: Any, context: MessageContext) -> Any:
        if request.request_id == "bad":
            raise NotFound("nothing there")
        return await answer_place(request, context)

    await serve_place(server_bus, handler)
    for name in ("1", "2", "3"):
        await ask_place(caller_bus, name)
    with pytest.raises(NotFound):
        await ask_place(caller_bus, "bad")
    stats = await ask(caller_bus, "$SRV.STATS.rorqual-router")
    datetime.fromisoformat(stats["started"])
    (endpoint,) = stats["endpoints"]
    assert (endpoint["num_requests"], endpoint["num_errors"]) == (4, 1)
    assert endpoint["last_error"] == "nothing there"
    assert endpoint["processing_time"] >= endpoint["average_processing_time"] > 0


async def test_discover_shows_identity_readiness_and_load(
    runtime_settings: RuntimeSettings, caller_bus: Bus
) -> None:
    async with open_service("decode", runtime_settings, version="1.2.3") as ctx:
        ctx.report_load(lambda report: report.decode.MergeFrom(type(report.decode)(kv_tokens=7)))
        (starting,) = await discovered(caller_bus, len)
        assert not starting.ready
        ctx.mark_ready()
        (found,) = await discovered(caller_bus, lambda found: found and found[0].load)
    assert (found.service, found.id, found.version) == ("decode", ctx.instance_id, "1.2.3")
    assert found.ready
    assert not found.draining
    assert found.incarnation == ctx.incarnation
    assert found.load is not None
    assert found.load.decode.kv_tokens == 7
    assert found.load.instance_id == ctx.instance_id
    assert 0 <= found.uptime_s < 30
    assert found.address == "127.0.0.1"
    assert found.pid > 0
    await discovered(caller_bus, lambda found: not found)


async def test_a_bus_that_serves_nothing_is_not_discovered(caller_bus: Bus) -> None:
    assert await discover(caller_bus.client) == []
