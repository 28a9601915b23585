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
    InstanceCounts,
    ScalingParams,
    ScalingState,
    ServiceBounds,
    demand_per_s,
    desired_counts,
    observe_counter,
)

PARAMS = ScalingParams(
    prefill=ServiceBounds(1, 4),
    decode=ServiceBounds(1, 4),
    up_after_s=3,
    down_after_s=60,
    missing_after_s=30,
)
IDLE = FleetDemand(
    now_s=0.0,
    prefill=InstanceCounts(1),
    decode=InstanceCounts(1),
    missed_tokens_per_s=0.0,
    prefill_tokens_per_s=1000.0,
    decode_slots=8,
    decode_pages=100,
)


def run(demand, times, state=None, params=PARAMS):
    state = state or ScalingState()
    decision = None
    for now_s in times:
        state, decision = desired_counts(state, replace(demand, now_s=now_s), params)
    return state, decision


def test_zero_traffic_keeps_the_minimum():
    _, decision = run(IDLE, range(0, 200, 10))
    assert (decision.prefill.num_desired, decision.prefill.num_change) == (1, 0)
    assert (decision.decode.num_desired, decision.decode.num_change) == (1, 0)


def test_up_only_after_the_load_has_lasted():
    busy = replace(IDLE, missed_tokens_per_s=2000.0)
    state, decision = run(busy, [0, 2])
    assert decision.prefill.num_change == 0
    _, decision = run(busy, [3], state)
    assert (decision.prefill.num_change, decision.prefill.num_desired) == (2, 3)


def test_a_dip_starts_the_wait_again():
    busy = replace(IDLE, missed_tokens_per_s=2000.0)
    state, _ = run(busy, [0, 2])
    state, _ = run(IDLE, [2.5], state)
    _, decision = run(busy, [3, 5], state)
    assert decision.prefill.num_change == 0


def test_pending_instances_are_capacity_until_their_deadline():
    busy = replace(IDLE, missed_tokens_per_s=1500.0, prefill=InstanceCounts(1, (50.0,)))
    _, decision = run(busy, [10, 20, 49])
    assert (decision.prefill.num_change, decision.prefill.num_pending) == (0, 1)
    _, decision = run(busy, [51, 55])
    assert (decision.prefill.num_change, decision.prefill.num_pending) == (1, 0)


def test_down_one_at_a_time_and_only_if_one_fewer_carries_the_load():
    three = replace(IDLE, prefill=InstanceCounts(3), missed_tokens_per_s=1100.0)
    state, decision = run(three, [0, 59])
    assert decision.prefill.num_change == 0
    state, decision = run(three, [60], state)
    assert decision.prefill.num_change == -1
    _, decision = run(replace(three, prefill=InstanceCounts(2)), [61, 121, 200], state)
    assert decision.prefill.num_change == 0


def test_backlog_counts_as_demand():
    _, decision = run(replace(IDLE, backlog_tokens=40_000), [0, 3])
    assert decision.prefill.num_change == 2


def test_decode_scales_on_slots_and_on_pages():
    _, decision = run(replace(IDLE, num_decode_in_flight=13), [0, 3])
    assert decision.decode.num_desired == 3
    _, decision = run(replace(IDLE, decode_used_pages=95), [0, 3])
    assert decision.decode.num_desired == 2


def test_a_missing_baseline_is_replaced_but_not_at_once():
    gone = replace(IDLE, prefill=InstanceCounts(0))
    state, decision = run(gone, [0, 29])
    assert (decision.prefill.num_change, decision.prefill.num_desired) == (0, 1)
    _, decision = run(gone, [30], state)
    assert decision.prefill.num_change == 1


def test_a_service_comes_back_from_zero():
    params = replace(PARAMS, prefill=ServiceBounds(0, 2), decode=ServiceBounds(0, 2))
    nothing = replace(IDLE, prefill=InstanceCounts(0), decode=InstanceCounts(0))
    _, decision = run(nothing, [0, 100], params=params)
    assert (decision.prefill.num_desired, decision.decode.num_desired) == (0, 0)
    _, decision = run(replace(nothing, missed_tokens_per_s=10.0), [0, 3], params=params)
    assert (decision.prefill.num_change, decision.decode.num_change) == (1, 1)


@given(
    st.floats(0, 1e9),
    st.integers(0, 10**9),
    st.floats(0, 1e6),
    st.integers(0, 6),
    st.integers(0, 1000),
    st.lists(st.floats(0, 500), min_size=1, max_size=8),
)
def test_counts_are_numbers_within_bounds(rate, backlog, capacity, running, in_flight, times):
    demand = FleetDemand(
        now_s=0.0,
        prefill=InstanceCounts(running),
        decode=InstanceCounts(running),
        missed_tokens_per_s=rate,
        backlog_tokens=backlog,
        prefill_tokens_per_s=capacity,
        num_decode_in_flight=in_flight,
    )
    state = ScalingState()
    for now_s in sorted(times):
        state, decision = desired_counts(state, replace(demand, now_s=now_s), PARAMS)
        for target in (decision.prefill, decision.decode):
            assert 1 <= target.num_desired <= max(4, running)
            assert target.num_change >= -1
            assert target.reason


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


def test_impossible_bounds_are_refused():
    with pytest.raises(ValueError, match="min <= max"):
        ServiceBounds(3, 2)
