"""Demand is arrivals, backlog and what is in hand; instances count as they come and go."""

from dataclasses import replace

import pytest
from rorqual_policy import InstanceReport
from rorqual_policy.load_view import DecodeTimes
from rorqual_runtime.clock import ManualClock
from rorqual_scaler.convert import RecipeCounters, Reported, RouterCounters, VisionCounters
from rorqual_scaler.drivers import OwnInstances
from rorqual_scaler.observer import FleetObserver, ObserverParams


def none(_service, _live_ids):
    return OwnInstances({}, ())


def said(service, instance_id, detail=None, seq=1, **fields):
    return Reported(InstanceReport(service, instance_id, incarnation=1, seq=seq, **fields), detail)


async def observed(**params):
    clock = ManualClock()
    observer = FleetObserver(clock, ObserverParams(window_s=10.0, silent_s=2.0, **params))
    await clock.advance(10.0)
    return clock, observer


async def test_no_reports_are_no_demand():
    _, observer = await observed()
    demand = observer.demand(none)
    assert demand.prefill.arriving_per_s == 0.0
    assert (demand.prefill.counts.num_running, demand.decode.counts.num_running) == (0, 0)
    assert demand.prefill.backlog == 0
    assert (demand.vision, demand.recipe) == (None, None)


async def test_arrivals_and_backlog():
    clock, observer = await observed()
    observer.on_report(said("router", "r0", RouterCounters(0, 0, 0)))
    observer.on_report(
        said("prefill", "p0", num_active_requests=2, queued_tokens=300, tokens_per_s=800.0)
    )
    await clock.advance(1.0)
    observer.on_report(said("router", "r0", RouterCounters(10, 5000, queued_jobs=6), seq=2))
    demand = observer.demand(none)
    assert demand.prefill.arriving_per_s == pytest.approx(500.0)
    assert demand.prefill.backlog == 300 + 4 * 500
    assert demand.prefill.capacity_per_s == 800.0
    assert demand.decode.num_held == 2


async def test_two_routers_see_one_queue():
    clock, observer = await observed()
    for router in ("r0", "r1"):
        observer.on_report(said("router", router, RouterCounters(0, 0, 0)))
    await clock.advance(1.0)
    for router in ("r0", "r1"):
        observer.on_report(said("router", router, RouterCounters(5, 500, queued_jobs=7), seq=2))
    demand = observer.demand(none)
    assert demand.prefill.backlog == 700
    assert demand.prefill.arriving_per_s == pytest.approx(100.0)


async def test_stopping_and_silent_instances_are_no_capacity():
    clock, observer = await observed()
    for instance_id in ("p0", "p1", "p2"):
        observer.on_report(said("prefill", instance_id))
    own = OwnInstances({"p9": clock.monotonic_s() + 5.0}, frozenset({"p1"}))
    none_of_others = OwnInstances({}, ())
    demand = observer.demand(lambda service, _: own if service == "prefill" else none_of_others)
    assert demand.prefill.counts.num_running == 2
    assert demand.prefill.counts.num_pending(demand.now_s) == 1
    await clock.advance(3.0)
    assert observer.demand(none).prefill.counts.num_running == 0


async def test_a_decode_instance_is_full_when_its_steps_would_be_too_long():
    """10 ms and 2 ms a request with its KV: 20 of 64 places within 50 ms."""
    running = {
        "num_running": 4,
        "max_running": 64,
        "kv_tokens": 4000,
        "decode_times": DecodeTimes(0.01, 1e-3, 1e-6),
    }
    _, observer = await observed(decode_step_s=0.05)
    observer.on_report(said("decode", "d0", **running))
    assert observer.demand(none).decode.slots == 20
    _, easy = await observed()
    easy.on_report(said("decode", "d0", **running))
    assert easy.demand(none).decode.slots == 64
    running["decode_times"] = DecodeTimes(0.01, 0.0, 0.0)  # a fit that says nothing of requests
    observer.on_report(said("decode", "d0", seq=2, **running))
    assert observer.demand(none).decode.slots == 64


async def test_vision_is_asked_for_patches_and_remembered_when_all_are_gone():
    clock, observer = await observed()
    seen = VisionCounters(asked_patches_total=0, queued_patches=50, patches_per_s=400.0)
    observer.on_report(said("vision", "v0", seen))
    await clock.advance(1.0)
    observer.on_report(said("vision", "v0", replace(seen, asked_patches_total=3000), seq=2))
    demand = observer.demand(none).vision
    assert (demand.arriving_per_s, demand.backlog, demand.capacity_per_s) == (300.0, 50, 400.0)
    await clock.advance(3.0)
    gone = observer.demand(none).vision
    assert (gone.counts.num_running, gone.backlog) == (0, 0)


async def test_a_busy_recipe_says_what_a_processor_does_and_an_idle_one_does_not():
    clock, observer = await observed()
    observer.on_report(said("recipe", "c0", RecipeCounters(0, 0)))
    await clock.advance(1.0)
    observer.on_report(said("recipe", "c0", RecipeCounters(60_000, cpu_ms_total=2000), seq=2))
    demand = observer.demand(none).recipe
    assert demand.arriving_per_s == pytest.approx(6000.0)
    assert demand.capacity_per_s == pytest.approx(30_000.0)
    await clock.advance(9.0)
    observer.on_report(said("recipe", "c0", RecipeCounters(60_010, cpu_ms_total=2050), seq=3))
    await clock.advance(2.0)
    assert observer.demand(none).recipe.capacity_per_s == 0.0


async def test_candidates_say_what_would_have_to_move():
    _, observer = await observed()
    observer.on_report(said("decode", "d0", num_running=3, kv_tokens=700))
    found = observer.drain_candidates("decode", ["d0", "d1"], none)
    assert [(c.instance_id, c.is_pending, c.num_requests, c.kv_tokens) for c in found] == [
        ("d0", False, 3, 700),
        ("d1", True, 0, 0),
    ]
