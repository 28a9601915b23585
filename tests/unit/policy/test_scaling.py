"""Instance counts follow demand with patience, within bounds, and zero traffic is data."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy import (
    CounterSource,
    DemandWindow,
    FleetDemand,
    FlowDemand,
    HoldDemand,
    InstanceCounts,
    ScalingParams,
    ScalingState,
    ServiceBounds,
    demand_per_s,
    desired_counts,
    observe_counter,
    slots_within,
)

FOUR = ServiceBounds(1, 4)
PARAMS = ScalingParams(
    services={"prefill": FOUR, "decode": FOUR, "vision": FOUR, "recipe": FOUR},
    up_utilisation=0.8,
    down_utilisation=0.6,
    up_after_s=3,
    down_after_s=60,
    down_pause_s=20,
    missing_after_s=30,
)
ONE = InstanceCounts(1)
IDLE = FleetDemand(
    now_s=0.0,
    prefill=FlowDemand(ONE, capacity_per_s=1000.0),
    decode=HoldDemand(ONE, slots=8, pages=100),
)


def prefill(rate=0.0, running=1, **changes):
    flow = FlowDemand(InstanceCounts(running), rate, capacity_per_s=1000.0)
    return replace(IDLE, prefill=replace(flow, **changes))


def decode(running=1, **changes):
    return replace(IDLE, decode=HoldDemand(InstanceCounts(running), slots=8, pages=100, **changes))


def run(demand, times, state=None, params=PARAMS):
    """State and targets after a decision at each time."""
    state = state or ScalingState()
    targets = {}
    for now_s in times:
        state, decision = desired_counts(state, replace(demand, now_s=now_s), params)
        targets = decision.targets
    return state, targets


def with_bounds(**bounds):
    return replace(PARAMS, services={**PARAMS.services, **bounds})


def test_zero_traffic_keeps_the_minimum():
    _, targets = run(IDLE, range(0, 200, 10))
    for service in ("prefill", "decode"):
        assert (targets[service].num_desired, targets[service].num_change) == (1, 0)


def test_up_only_after_the_load_has_lasted():
    state, targets = run(prefill(2000.0), [0, 2])
    assert targets["prefill"].num_change == 0
    _, targets = run(prefill(2000.0), [3], state)
    assert (targets["prefill"].num_change, targets["prefill"].num_desired) == (2, 3)


def test_a_dip_starts_the_wait_again():
    state, _ = run(prefill(2000.0), [0, 2])
    state, _ = run(IDLE, [2.5], state)
    _, targets = run(prefill(2000.0), [3, 5], state)
    assert targets["prefill"].num_change == 0


def test_pending_instances_are_capacity_until_their_deadline():
    busy = prefill(1500.0, counts=InstanceCounts(1, (50.0,)))
    _, targets = run(busy, [10, 20, 49])
    assert (targets["prefill"].num_change, targets["prefill"].num_pending) == (0, 1)
    _, targets = run(busy, [51, 55])
    assert (targets["prefill"].num_change, targets["prefill"].num_pending) == (1, 0)


def test_down_only_as_far_as_fewer_would_have_carried_all_of_the_window():
    """1.1 instances of load: two would be at 55 %, one could not."""
    state, targets = run(prefill(1100.0, running=3), [0, 59])
    assert targets["prefill"].num_change == 0
    state, targets = run(prefill(1100.0, running=3), [60], state)
    assert targets["prefill"].num_change == -1
    _, targets = run(prefill(1100.0, running=2), [61, 121, 200], state)
    assert targets["prefill"].num_change == 0


def test_a_peak_within_the_window_keeps_what_carried_it():
    state, _ = run(prefill(running=4), [0])
    state, _ = run(prefill(2300.0, running=4), [50], state)
    _, targets = run(prefill(running=4), [60, 80, 109], state)
    assert targets["prefill"].num_change == 0
    _, targets = run(prefill(running=4), [60, 80, 111], state)
    assert targets["prefill"].num_change == -1


def test_many_go_in_steps_with_pauses():
    params = replace(with_bounds(prefill=ServiceBounds(1, 100)), down_share=0.25)
    state, targets = run(prefill(running=40), [0, 60], params=params)
    assert targets["prefill"].num_change == -10
    state, targets = run(prefill(running=30), [61, 79], state, params)
    assert targets["prefill"].num_change == 0
    _, targets = run(prefill(running=30), [80], state, params)
    assert targets["prefill"].num_change == -7


def test_a_load_that_swings_between_the_utilisations_moves_nothing():
    """What was added for 0.8 stays until 0.6 of what remains has not been passed for long."""
    state, num, changes = ScalingState(), 1, []
    for now_s in range(2000):
        rate = 2000.0 * (1.0 + 0.15 * math.sin(now_s / 7))
        state, targets = run(prefill(rate, running=num), [now_s], state)
        if targets["prefill"].num_change:
            num += targets["prefill"].num_change
            changes.append(targets["prefill"].num_change)
    assert all(change > 0 for change in changes)


def test_backlog_counts_as_demand():
    _, targets = run(prefill(backlog=40_000), [0, 3])
    assert targets["prefill"].num_change == 2


def test_decode_scales_on_slots_and_on_pages():
    _, targets = run(decode(num_held=13), [0, 3])
    assert targets["decode"].num_desired == 3
    _, targets = run(decode(used_pages=95), [0, 3])
    assert targets["decode"].num_desired == 2


def test_vision_and_recipe_scale_once_somebody_speaks_of_them():
    _, targets = run(IDLE, [0])
    assert set(targets) == {"prefill", "decode"}
    busy = replace(
        IDLE,
        vision=FlowDemand(ONE, 2000.0, capacity_per_s=1000.0),
        recipe=FlowDemand(ONE, 1200.0, capacity_per_s=1000.0),
    )
    _, targets = run(busy, [0, 3])
    assert (targets["vision"].num_desired, targets["recipe"].num_desired) == (3, 2)
    assert "patches/s" in targets["vision"].reason


def test_arrivals_without_a_known_capacity_want_one_instance():
    unknown = replace(IDLE, vision=FlowDemand(InstanceCounts(0), 500.0))
    _, targets = run(unknown, [0, 3], params=with_bounds(vision=ServiceBounds(0, 4)))
    assert targets["vision"].num_change == 1


def test_spare_and_redundant_instances_come_on_top_of_the_load():
    bounds = with_bounds(prefill=ServiceBounds(1, 50, num_spare=2))
    _, targets = run(prefill(8000.0), [0, 3], params=bounds)
    assert targets["prefill"].num_desired == 12
    _, targets = run(prefill(8000.0), [0, 3], params=replace(bounds, redundancy=0.05))
    assert targets["prefill"].num_desired == 13
    _, targets = run(prefill(0.0, running=3), [0, 100], params=bounds)
    assert targets["prefill"].num_desired == 2  # held ready without any load


def test_a_missing_baseline_is_replaced_but_not_at_once():
    state, targets = run(prefill(running=0), [0, 29])
    assert (targets["prefill"].num_change, targets["prefill"].num_desired) == (0, 1)
    _, targets = run(prefill(running=0), [30], state)
    assert targets["prefill"].num_change == 1


def test_a_fleet_that_starts_slowly_gets_no_second_one():
    slow = replace(PARAMS, start_s=100)
    state, targets = run(prefill(running=0), [0, 99], params=slow)
    assert targets["prefill"].num_change == 0
    _, targets = run(prefill(running=0), [100], state, slow)
    assert targets["prefill"].num_change == 1
    state, _ = run(prefill(), [0, 100], params=slow)
    _, targets = run(prefill(running=0), [101, 131], state, slow)
    assert targets["prefill"].num_change == 1


def test_a_service_comes_back_from_zero():
    params = with_bounds(prefill=ServiceBounds(0, 2), decode=ServiceBounds(0, 2))
    nothing = replace(
        IDLE,
        prefill=replace(IDLE.prefill, counts=InstanceCounts(0)),
        decode=replace(IDLE.decode, counts=InstanceCounts(0)),
    )
    _, targets = run(nothing, [0, 100], params=params)
    assert (targets["prefill"].num_desired, targets["decode"].num_desired) == (0, 0)
    arriving = replace(nothing, prefill=replace(nothing.prefill, arriving_per_s=10.0))
    _, targets = run(arriving, [0, 3], params=params)
    assert (targets["prefill"].num_change, targets["decode"].num_change) == (1, 1)


@given(
    st.floats(0, 1e9),
    st.integers(0, 10**9),
    st.floats(0, 1e6),
    st.integers(0, 6),
    st.integers(0, 1000),
    st.lists(st.floats(0, 500), min_size=1, max_size=8),
)
def test_counts_are_numbers_within_bounds(rate, backlog, capacity, running, in_flight, times):
    counts = InstanceCounts(running)
    demand = FleetDemand(
        now_s=0.0,
        prefill=FlowDemand(counts, rate, backlog, capacity),
        decode=HoldDemand(counts, num_held=in_flight),
    )
    state = ScalingState()
    for now_s in sorted(times):
        state, decision = desired_counts(state, replace(demand, now_s=now_s), PARAMS)
        for target in decision.targets.values():
            assert 1 <= target.num_desired <= max(4, running)
            assert target.num_change >= -1
            assert target.reason


@given(st.lists(st.tuples(st.floats(0, 40), st.integers(0, 40_000)), min_size=2, max_size=60))
def test_what_remains_would_have_carried_all_of_the_window(loads):
    """Whatever the load did: after a removal the rest had room for its highest in down_after_s."""
    params = with_bounds(prefill=ServiceBounds(1, 100))
    state, num, now_s, seen = ScalingState(), 60, 0.0, []
    for gap_s, rate in loads:
        now_s += gap_s
        seen.append((now_s, rate))
        state, targets = run(prefill(float(rate), running=num), [now_s], state, params)
        num += targets["prefill"].num_change
        if targets["prefill"].num_change < 0:
            highest = max(rate for at_s, rate in seen if at_s > now_s - params.down_after_s)
            assert num * params.down_utilisation * 1000.0 >= highest - 1.0


def test_an_instance_takes_as_many_as_its_steps_allow():
    assert slots_within(0.05, 0.01, 1e-3, 1e-3) == 20
    assert slots_within(0.05, 0.10, 1e-3, 0.0) == 1
    with pytest.raises(ValueError, match="per request"):
        slots_within(0.05, 0.01, 0.0, 0.0)


def test_demand_counts_growth_not_totals():
    first, second = CounterSource("r1", 1), CounterSource("r2", 1)
    window = DemandWindow(window_s=10, started_s=0)
    window = observe_counter(window, first, 1_000_000, 1)
    assert demand_per_s(window, 1) == 0
    window = observe_counter(window, first, 1_000_500, 6)
    window = observe_counter(window, second, 70, 6)
    window = observe_counter(window, second, 570, 7)
    assert demand_per_s(window, 10) == 100
    assert demand_per_s(window, 16.5) == 50
    assert demand_per_s(window, 30) == 0


def test_a_restarted_counter_is_a_new_source():
    window = DemandWindow(window_s=10, started_s=0)
    window = observe_counter(window, CounterSource("r1", 1), 5000, 1)
    window = observe_counter(window, CounterSource("r1", 2), 10, 2)
    window = observe_counter(window, CounterSource("r1", 2), 30, 3)
    assert demand_per_s(window, 10) == 2
    assert len(window.counters) == 1


@pytest.mark.parametrize("now_s", [0.0, 0.5, 1e6])
def test_an_empty_window_is_zero(now_s):
    assert demand_per_s(DemandWindow(10, 0.0), now_s) == 0.0
    assert not math.isnan(demand_per_s(DemandWindow(10, 0.0), now_s))


@pytest.mark.parametrize("fields", [{"min_instances": 3, "max_instances": 2}, {"num_spare": -1}])
def test_impossible_bounds_are_refused(fields):
    with pytest.raises(ValueError, match="min <= max"):
        ServiceBounds(**fields)
