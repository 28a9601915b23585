"""Placements: balanced over live instances, and quick to say no."""

import asyncio
from collections import Counter

import pytest
from rorqual_proto.v1 import router_pb2
from rorqual_runtime import subjects
from rorqual_runtime.errors import Cancelled, ContextTooLong, NoCapacity

from tests.support.waiting import until

from .conftest import running_router


async def test_chooses_the_idle_one_and_honours_exclusions(runtime_settings, fleet, client):
    fleet.add_decode("d0", num_running=20)
    async with running_router(runtime_settings) as router:
        await fleet.heard_by(router)
        assert await client.place("r1") == "d1"
        assert await client.place("r1", excluded=["d1"]) == "d0"


async def test_says_no_quickly_when_nobody_has_room(runtime_settings, fleet, client):
    fleet.add_decode("d0", num_running=64)
    fleet.add_decode("d1", num_total_pages=2)
    async with running_router(runtime_settings) as router:
        await fleet.heard_by(router)
        with pytest.raises(NoCapacity):
            await client.place("r1")
        with pytest.raises(NoCapacity):
            await client.place("r1", excluded=["d0", "d1"])
        with pytest.raises(ContextTooLong):
            await client.place("huge", num_tokens=10_000_000)


async def test_silent_and_draining_instances_get_nothing(runtime_settings, fleet, client):
    async with running_router(runtime_settings, silent_s=1.5) as router:
        fleet.add_decode("d0", draining=True)
        await fleet.heard_by(router)
        assert {await client.place(f"r{n}") for n in range(6)} == {"d1"}
        del fleet.reports["d1"]
        await until(lambda: router.fleet.num_live("decode") == 0)
        with pytest.raises(NoCapacity):
            await client.place("r9")


async def test_a_cancelled_request_gets_no_place(runtime_settings, bus, fleet, client):
    async with running_router(runtime_settings) as router:
        await fleet.heard_by(router)
        await bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="gone"))
        await until(lambda: "gone" in router._cancelled)
        with pytest.raises(Cancelled):
            await client.place("gone")


async def test_two_routers_do_not_herd(runtime_settings, fleet, client):
    async with (
        running_router(runtime_settings, "router-a", settle_s=60.0) as a,
        running_router(runtime_settings, "router-b", settle_s=60.0) as b,
    ):
        for router in (a, b):
            await fleet.heard_by(router)
            await until(lambda: router.fleet.num_live("router") == 2)  # noqa: B023
        chosen = Counter(await asyncio.gather(*(client.place(f"r{n}") for n in range(50))))
    assert set(chosen) == {"d0", "d1"}
    assert abs(chosen["d0"] - 25) <= 5
