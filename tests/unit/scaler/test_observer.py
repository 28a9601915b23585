"""Demand is arrivals, backlog and what is in hand; own instances count as they come and go."""

import pytest
from rorqual_policy import InstanceReport
from rorqual_runtime.clock import ManualClock
from rorqual_scaler.convert import RouterCounters
from rorqual_scaler.observer import FleetObserver, OwnInstances

NONE = OwnInstances({}, ())


def report(service, instance_id, seq=1, **fields):
    return InstanceReport(service, instance_id, incarnation=1, seq=seq, **fields)


async def observed():
    clock = ManualClock()
    observer = FleetObserver(clock, window_s=10.0, silent_s=2.0)
    await clock.advance(10.0)
    return clock, observer


async def test_no_reports_are_no_demand():
    _, observer = await observed()
    demand = observer.demand(lambda _service: NONE)
    assert demand.missed_tokens_per_s == 0.0
    assert (demand.prefill.num_running, demand.decode.num_running) == (0, 0)
    assert demand.backlog_tokens == 0


async def test_arrivals_and_backlog():
    clock, observer = await observed()
    observer.on_report(report("router", "r0"), RouterCounters(0, 0, 0))
    observer.on_report(
        report("prefill", "p0", num_active_requests=2, queued_tokens=300, tokens_per_s=800.0), None
    )
    await clock.advance(1.0)
    observer.on_report(report("router", "r0", seq=2), RouterCounters(10, 5000, queued_jobs=6))
    demand = observer.demand(lambda _service: NONE)
    assert demand.missed_tokens_per_s == pytest.approx(500.0)
    assert demand.backlog_tokens == 300 + 4 * 500
    assert demand.prefill_tokens_per_s == 800.0
    assert demand.num_decode_in_flight == 2


async def test_two_routers_see_one_queue():
    clock, observer = await observed()
    for router in ("r0", "r1"):
        observer.on_report(report("router", router), RouterCounters(0, 0, 0))
    await clock.advance(1.0)
    for router in ("r0", "r1"):
        observer.on_report(report("router", router, seq=2), RouterCounters(5, 500, queued_jobs=7))
    demand = observer.demand(lambda _service: NONE)
    assert demand.backlog_tokens == 700
    assert demand.missed_tokens_per_s == pytest.approx(100.0)


async def test_stopping_and_silent_instances_are_no_capacity():
    clock, observer = await observed()
    for instance_id in ("p0", "p1", "p2"):
        observer.on_report(report("prefill", instance_id), None)
    own = OwnInstances({"p9": clock.monotonic_s() + 5.0}, frozenset({"p1"}))
    demand = observer.demand(lambda service: own if service == "prefill" else NONE)
    assert demand.prefill.num_running == 2
    assert demand.prefill.num_pending(demand.now_s) == 1
    await clock.advance(3.0)
    assert observer.demand(lambda _service: NONE).prefill.num_running == 0
