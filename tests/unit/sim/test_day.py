"""A day of streams: nothing is lost or made up, order and autoscalers do what they promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.prefill_order import FIRST_COME, SHORT_FIRST
from rorqual_policy.scaling import ScalingParams, ServiceBounds
from rorqual_policy.step_cost import STUDY_COST
from rorqual_sim.day.autoscalers import ByDemand, ByUtilisation, ThresholdParams
from rorqual_sim.day.fleet import DayFleet
from rorqual_sim.day.instances import Instances
from rorqual_sim.day.mix import conversations
from rorqual_sim.day.queue import PromptQueue
from rorqual_sim.day.run import Size, busy_size, fixed_day, simulate_day, smallest_fixed
from rorqual_sim.day.traffic import Traffic, arrivals, rates_per_s

MIX = conversations(STUDY_COST, 6)
CALM = DayFleet(failures_per_hour=0.0)


def constant(per_s, num_s, seed=3):
    return arrivals(np.full(num_s, float(per_s)), MIX.num_classes, seed)


def test_the_mix_is_what_its_source_says():
    assert MIX.mean_missed_tokens == pytest.approx(7500, rel=0.03)
    assert list(MIX.work_s) == sorted(MIX.work_s)


@given(
    st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=12),
    st.floats(0.5, 40.0),
)
def test_the_queue_serves_what_came_and_no_more_than_there_is_time_for(nums, rank_s):
    queue = PromptQueue((0.1, 0.5, 2.0), SHORT_FIRST)
    num_served, now_s = 0.0, 0.0
    for second in range(5000):
        now_s = float(second)
        if second < len(nums):
            queue.add(now_s, nums[second])
        served = queue.serve(now_s, rank_s)
        assert sum(s.num * (0.1, 0.5, 2.0)[s.place] for s in served) <= rank_s + 1e-6
        assert all(s.wait_s >= 0 for s in served)
        num_served += sum(s.num for s in served)
        if second >= len(nums) and queue.waiting_s < 1e-6:
            break
    assert num_served == pytest.approx(sum(map(sum, nums)), abs=1e-5)


def test_short_prompts_overtake_long_ones_only_where_the_order_says_so():
    waits = {}
    for order in (FIRST_COME, SHORT_FIRST):
        queue = PromptQueue((0.1, 4.0), order)
        queue.add(0.0, [0, 10])
        queue.add(1.0, [10, 0])
        served = [s for second in range(1, 60) for s in queue.serve(float(second), 1.0)]
        waits[order] = max(s.wait_s for s in served if s.place == 0)
    assert waits[FIRST_COME] > 35
    assert waits[SHORT_FIRST] < 3


def test_instances_are_paid_from_their_start_to_the_end_of_their_drain():
    instances = Instances(2, cards=8, start_up_s=30.0, drain_s=10.0)
    instances.keep(3, 0.0)
    for second in range(60):
        instances.advance(float(second), 1.0)
        assert instances.num_ready == (3 if second >= 30 else 2)
    assert instances.card_s == 3 * 8 * 60
    instances.keep(2, 60.0)
    assert instances.card_s == 3 * 8 * 60 + 8 * 10
    assert (instances.num_changes, instances.num_reversals) == (2, 1)
    assert instances.fail(5, 61.0) == 2
    assert (instances.num_ready, instances.num_kept) == (0, 2)


def test_a_fleet_with_room_serves_all_and_one_without_does_not():
    per_s = 100.0
    nums = constant(per_s, 400)
    assert fixed_day(CALM, MIX, nums, busy_size(CALM, MIX, per_s, 0.8)).attainment > 0.999
    assert fixed_day(CALM, MIX, nums, busy_size(CALM, MIX, per_s, 1.4)).attainment < 0.9


def test_failures_cost_attainment_and_nothing_else():
    often = DayFleet(failures_per_hour=2.0)
    nums = constant(100.0, 1800)
    size = busy_size(CALM, MIX, 100.0, 0.5)
    calm, failing = (fixed_day(fleet, MIX, nums, size) for fleet in (CALM, often))
    assert failing.num_requests == calm.num_requests
    assert 0.9 < failing.attainment < calm.attainment


def test_demand_follows_a_rise_and_a_fall_and_a_threshold_does_too():
    nums = np.concatenate([constant(p, 1500) for p in (300.0, 900.0, 300.0)])
    begin = busy_size(CALM, MIX, 300.0, 0.7)
    bounds = ServiceBounds(1, 200)
    params = ScalingParams(services={"prefill": bounds, "decode": bounds}, redundancy=0.05)
    ours = simulate_day(CALM, MIX, nums, ByDemand(params), begin)
    assert ours.num_reversals <= 2
    assert begin.cards(CALM) * 75 / 60 < ours.card_hours
    threshold = ByUtilisation(ThresholdParams(0.7), (1, 1), (200, 200))
    theirs = simulate_day(CALM, MIX, nums, threshold, begin)
    assert theirs.num_changes > 1
    most = busy_size(CALM, MIX, 900.0, 0.8)
    assert ours.card_hours < most.cards(CALM) * 75 / 60
    assert ours.attainment > 0.9


def test_the_smallest_of_the_sizes_that_attain_the_goal_is_found():
    sizes = [Size(n, 1) for n in range(1, 40)]
    found = smallest_fixed(lambda size: size.num_prefill / 40, 0.5, sizes)
    assert found == (Size(20, 1), 0.5)
    assert smallest_fixed(lambda _size: 0.0, 0.5, sizes) is None


def test_a_day_is_the_same_again_and_has_its_trough_and_bursts():
    traffic = Traffic(peak_per_s=1000.0)
    rates = rates_per_s(traffic, 86_400, seed=2)
    assert np.array_equal(rates, rates_per_s(traffic, 86_400, seed=2))
    assert rates[4 * 3600 - 600 : 4 * 3600 + 600].mean() < 0.45 * rates.max()
    assert 1000.0 < rates.max() < 2000.0
