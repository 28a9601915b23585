"""The router's view: waiting for who is missing, and what live engines say of themselves."""

import asyncio

from rorqual_policy import InstanceReport, PlacementParams, PlacementRequest
from rorqual_policy.load_view import DecodeTimes
from rorqual_router.fleet import Fleet
from rorqual_runtime.clock import ManualClock


def fleet_of(clock):
    return Fleet(clock, PlacementParams())


def report(service="prefill", instance_id="p0", seq=1, **fields):
    return InstanceReport(service, instance_id, incarnation=1, seq=seq, **fields)


async def test_wait_ends_with_the_first_report_of_each_service():
    fleet = fleet_of(ManualClock())
    waiting = asyncio.create_task(fleet.wait_alive(("prefill", "decode"), 5.0))
    await asyncio.sleep(0)
    fleet.on_report(report("prefill"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    fleet.on_report(report("decode", "d0"))
    assert await waiting == []


async def test_no_wait_names_who_is_missing():
    fleet = fleet_of(ManualClock())
    fleet.on_report(report("prefill"))
    assert await fleet.wait_alive(("prefill", "decode"), 0.0) == ["decode"]


async def test_facts_come_from_live_engines_only():
    clock = ManualClock()
    fleet = fleet_of(clock)
    assert (fleet.model_fingerprint(), fleet.max_context_tokens()) == ("", 0)
    fleet.on_report(report(model_fingerprint="f", max_context_tokens=8192, tokens_per_s=10.0))
    fleet.on_report(report(instance_id="p1", tokens_per_s=5.0))
    assert (fleet.model_fingerprint(), fleet.max_context_tokens()) == ("f", 8192)
    assert fleet.prefill_tokens_per_s() == 15.0
    await clock.advance(3.0)
    fleet.drop_silent()
    assert (fleet.model_fingerprint(), fleet.num_live("prefill")) == ("", 0)


def test_a_refused_placement_is_taken_back():
    fleet = fleet_of(ManualClock())
    for instance_id in ("d0", "d1"):
        fleet.on_report(report("decode", instance_id, max_running=1, num_total_pages=10))
    first = fleet.place(PlacementRequest("r/0", 100, 10))
    second = fleet.place(
        PlacementRequest("r/0", 100, 10, excluded_ids=frozenset({first.instance_id}))
    )
    assert {first.instance_id, second.instance_id} == {"d0", "d1"}
    assert fleet.place(PlacementRequest("s/0", 100, 10)).instance_id == first.instance_id
    assert fleet.place(PlacementRequest("t/0", 100, 10)).instance_id is None


async def test_the_oldest_live_instance_has_no_elder():
    clock = ManualClock()
    fleet = fleet_of(clock)
    fleet.on_report(InstanceReport("router", "a", incarnation=7, seq=1))
    fleet.on_report(InstanceReport("router", "b", incarnation=5, seq=1))
    assert (fleet.has_elder("router", "a", 7), fleet.has_elder("router", "b", 5)) == (True, False)
    assert fleet.has_elder("router", "c", 5)  # of equal ones the first by name
    fleet.on_report(InstanceReport("router", "b", incarnation=5, seq=2, draining=True))
    assert not fleet.has_elder("router", "a", 7)
    fleet.on_report(InstanceReport("router", "b", incarnation=5, seq=3))
    await clock.advance(3.0)
    assert not fleet.has_elder("router", "a", 7)


async def test_a_placement_counts_until_it_has_settled():
    clock = ManualClock()
    fleet = fleet_of(clock)
    for instance_id in ("d0", "d1"):
        fleet.on_report(report("decode", instance_id, max_running=9, num_total_pages=99))
    first = fleet.place(PlacementRequest("r/0", 100, 10)).instance_id
    second = fleet.place(PlacementRequest("r/1", 100, 10)).instance_id
    assert first != second
    await clock.advance(1.5)  # no report showed either of them
    busy = report("decode", "d0", 2, num_running=1, max_running=9, num_total_pages=99)
    fleet.on_report(busy)
    assert fleet.place(PlacementRequest("r/2", 100, 10)).instance_id == "d1"
    await clock.advance(1.0)
    assert fleet.place(PlacementRequest("r/3", 100, 10)).instance_id == "d0"  # d1 is silent


async def test_placement_goes_by_what_decode_steps_take():
    clock = ManualClock()
    fleet = fleet_of(clock)

    def say(seq, times):
        room = {"max_running": 99, "num_total_pages": 9999, "decode_times": times}
        fleet.on_report(report("decode", "many", seq, num_running=9, **room))
        fleet.on_report(report("decode", "long", seq, kv_tokens=400_000, num_running=1, **room))

    say(1, None)
    assert fleet.place(PlacementRequest("r/0", 100, 10)).instance_id == "long"
    await clock.advance(1.5)
    say(2, DecodeTimes(0.01, 1e-5, 1e-6))  # here it is the context that costs
    assert fleet.place(PlacementRequest("r/1", 100, 10)).instance_id == "many"
    await clock.advance(1.5)
    say(3, None)
    assert fleet.place(PlacementRequest("r/2", 100, 10)).instance_id == "many"
