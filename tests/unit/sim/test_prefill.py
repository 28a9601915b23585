"""The simulated prefill fleet: causal, work conserving, deterministic, bounded in its waits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_policy.prefill_order import FIRST_COME, PrefillOrder
from rorqual_policy.prefill_policy import BucketMode, PrefillPolicy, deepseek_policy, rorqual_policy
from rorqual_policy.step_cost import STUDY_COST, StepBudget
from rorqual_sim import prefill_state as rule
from rorqual_sim.prefill import PrefillFleet, PushRule, simulate_prefill
from rorqual_sim.workloads import with_estimate_noise

from tests.unit.sim.loads import mixed_workload
from tests.unit.sim.plain_prefill import plain_prefill

pytestmark = pytest.mark.timeout(400)  # compiling takes ten seconds of an idle core
FLEET = PrefillFleet(num_groups=4, ranks_per_group=2)
RORQUAL = rorqual_policy(STUDY_COST)
DEEPSEEK = deepseek_policy(STUDY_COST)
POLICIES = [
    RORQUAL,
    replace(RORQUAL, buckets=BucketMode.POOLED),
    DEEPSEEK,
    replace(DEEPSEEK, buckets=BucketMode.SPILL),
]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(POLICIES), st.floats(5.0, 200.0))
def test_the_compiled_loop_decides_as_the_policy_functions_do(seed, policy, seconds):
    """Bit for bit the waiting times of a plain loop that calls the policy functions."""
    workload = with_estimate_noise(mixed_workload(300, seconds, seed), 0.3, seed)
    compiled = simulate_prefill(workload, FLEET, policy, STUDY_COST).ttft_s
    assert np.array_equal(compiled, plain_prefill(workload, FLEET, policy, STUDY_COST))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(POLICIES), st.sampled_from([0, 4096]))
def test_nothing_is_done_before_it_can_be_and_all_of_it_is_done(seed, policy, chunk_tokens):
    workload = mixed_workload(300, 60.0, seed)
    run = simulate_prefill(workload, FLEET, policy, STUDY_COST, chunk_tokens=chunk_tokens)
    assert np.all(run.ttft_s >= workload.work_s + STUDY_COST.a0_s - 1e-9)
    assert np.all(np.isfinite(run.ttft_s))
    again = simulate_prefill(workload, FLEET, policy, STUDY_COST, chunk_tokens=chunk_tokens)
    assert np.array_equal(run.ttft_s, again.ttft_s)


@pytest.mark.parametrize("policy", POLICIES[:2], ids=["buckets", "pooled"])
def test_no_rank_idles_while_work_waits(policy):
    """Each rank's step is filled to its budget for as long as a job waits that it could take."""
    workload = mixed_workload(4000, 5.0, 3)
    steps = simulate_prefill(workload, FLEET, policy, STUDY_COST).steps
    assert steps.num_steps > 100
    assert steps.least_fill >= 0.98
    assert steps.largest_excess_s <= 1e-12


def test_a_step_that_costs_nothing_by_itself_still_ends():
    cost = STUDY_COST._replace(a0_s=0.0)
    workload = mixed_workload(200, 20.0, 4, cost)
    ttft_s = simulate_prefill(workload, FLEET, rorqual_policy(cost), cost).ttft_s
    assert np.all(np.isfinite(ttft_s))
    with pytest.raises(ValueError, match="compute nothing"):
        never = replace(RORQUAL, budget=StepBudget(STUDY_COST.a0_s, STUDY_COST.a0_s))
        simulate_prefill(workload, FLEET, never, STUDY_COST)


def test_nobody_is_overtaken_by_what_came_longer_after_it_than_the_bound():
    """One rank, so that order of taking is order of finishing but for the job under way."""
    policy = PrefillPolicy(
        "bounded", BucketMode.POOLED, PrefillOrder(16.0, 5.0), StepBudget(0.05, 0.05)
    )
    workload = mixed_workload(600, 60.0, 5)
    finish_s = (
        workload.arrival_s
        + simulate_prefill(workload, PrefillFleet(1, 1), policy, STUDY_COST).ttft_s
    )
    for job, arrival_s in enumerate(workload.arrival_s):
        later = workload.arrival_s > arrival_s + 5.0 + 0.05
        assert not np.any(finish_s[later] < finish_s[job] - 1e-9)


def test_pulling_beats_round_robin_on_mixed_prompts():
    workload = mixed_workload(2000, 100.0, 7)
    policy = PrefillPolicy("fifo", BucketMode.POOLED, FIRST_COME, StepBudget(0.273, 0.273))
    pulled = simulate_prefill(workload, FLEET, policy, STUDY_COST).ttft_s
    pushed = simulate_prefill(
        workload, FLEET, policy, STUDY_COST, push=PushRule(rule.ROUND_ROBIN)
    ).ttft_s
    assert pulled.mean() < 0.8 * pushed.mean()
