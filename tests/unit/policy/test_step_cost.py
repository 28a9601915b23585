"""Chunks fill a step's budget and never exceed it; the budget follows the waiting work."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.step_cost import (
    STUDY_COST,
    StepBudget,
    StepCost,
    adaptive_budget,
    checked_cost,
    chunk_cost_s,
    relative_speed,
    solve_chunk_tokens,
    step_budget_s,
)

COSTS = st.builds(
    StepCost,
    st.floats(0, 0.1),
    st.floats(1e-8, 1e-2),
    st.floats(0, 1e-8),
    st.one_of(st.just(0.0), st.floats(1e-14, 1e-8)),
)


@given(COSTS, st.integers(0, 1_000_000), st.integers(0, 1_000_000), st.floats(-0.1, 10.0))
def test_a_chunk_is_the_largest_that_fits(cost, remaining, context, spare_s):
    chunk = solve_chunk_tokens(cost, remaining, context, spare_s)
    assert 0 <= chunk <= remaining
    assert chunk == 0 or chunk_cost_s(cost, chunk, context) <= spare_s
    if chunk < remaining:
        assert chunk_cost_s(cost, chunk + 1, context) > spare_s


@given(st.integers(1, 200_000), st.integers(0, 900_000), st.integers(1, 8))
def test_splitting_a_prompt_into_chunks_changes_no_work(tokens, context, num_chunks):
    """Holds where attention within a chunk costs half of attention to what was before."""
    bounds = [tokens * i // num_chunks for i in range(num_chunks + 1)]
    parts = [
        chunk_cost_s(STUDY_COST, end - begin, context + begin) for begin, end in pairwise(bounds)
    ]
    assert sum(parts) == pytest.approx(chunk_cost_s(STUDY_COST, tokens, context), rel=1e-9)


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.integers(1, 4096))
def test_a_longer_queue_never_means_a_shorter_step(one_s, other_s, num_ranks):
    budget = adaptive_budget(STUDY_COST, 0.273)
    short_s, long_s = (
        step_budget_s(STUDY_COST, budget, waiting_s, num_ranks)
        for waiting_s in sorted((one_s, other_s))
    )
    assert budget.min_s <= short_s <= long_s <= budget.max_s


@pytest.mark.parametrize(
    ("a0_s", "longest_s"), [(0.02, 0.273), (0.008, 0.273), (0.004, 0.14), (0.001, 0.1), (0, 0.1)]
)
def test_no_step_is_longer_than_its_a0_is_worth(a0_s, longest_s):
    budget = adaptive_budget(STUDY_COST._replace(a0_s=a0_s), 0.273)
    assert budget.max_s == pytest.approx(longest_s)
    assert 0 < budget.min_s <= budget.max_s


def test_a_step_clears_a_ranks_fair_share_of_what_waits():
    budget = StepBudget(0.04, 0.3)
    assert step_budget_s(STUDY_COST, budget, 12.8, 128) == pytest.approx(0.108)


@pytest.mark.parametrize("cost", [(0, 0, 0, 0), (-1, 1, 0, 0), (0, 1, 0, float("nan"))])
def test_impossible_costs_are_refused(cost):
    with pytest.raises(ValueError, match="a1 > 0"):
        checked_cost(StepCost(*cost))


def test_speed_is_that_of_whole_steps_whatever_coefficient_says_so():
    slower = StepCost(0.15, 0.8e-4, 3e-6, 3e-6)
    mean = StepCost(0.05, 1e-4, 1e-6, 1e-6)
    assert relative_speed(mean, mean) == 1.0
    assert 0.3 < relative_speed(slower, mean) < 0.4
