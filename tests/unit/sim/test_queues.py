"""The prefill loop against queueing theory: one server, and many with one queue."""

import math

import numpy as np
import pytest
from rorqual_policy.prefill_order import FIRST_COME
from rorqual_policy.prefill_policy import BucketMode, PrefillPolicy
from rorqual_policy.step_cost import StepBudget, StepCost
from rorqual_sim.prefill import PrefillFleet, pooled_fifo, simulate_prefill

from tests.unit.sim.loads import workload_of

pytestmark = pytest.mark.timeout(400)  # compiling takes ten seconds of an idle core
COST = StepCost(a0_s=0.0, a1_s=1e-3, a2_s=0.0, a3_s=0.0)
"""A token is a millisecond; steps are a tenth of the mean work: almost continuous."""
TINY_STEPS = PrefillPolicy("tiny", BucketMode.POOLED, FIRST_COME, StepBudget(10e-3, 10e-3))


def poisson(load, num_servers, num, seed):
    """Exponential work of mean 0.1 s at this load of all servers."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(0.1 / (load * num_servers), num))
    tokens = np.maximum(1, np.rint(rng.exponential(100.0, num))).astype(np.int64)
    return workload_of(arrival_s, tokens, COST)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_rank_waits_as_m_m_1_says(load):
    workload = poisson(load, 1, 100_000, 1)
    ttft_s = simulate_prefill(workload, PrefillFleet(1, 1), TINY_STEPS, COST).ttft_s
    assert ttft_s.mean() == pytest.approx(0.1 / (1 - load), rel=0.08)


def test_many_ranks_wait_as_erlang_c_says():
    load, servers = 0.9, 8
    workload = poisson(load, servers, 60_000, 2)
    expected_s = 0.1 + erlang_c(servers, load * servers) * 0.1 / (servers * (1 - load))
    ttft_s = simulate_prefill(workload, PrefillFleet(servers, 1), TINY_STEPS, COST).ttft_s
    assert ttft_s.mean() == pytest.approx(expected_s, rel=0.08)
    assert pooled_fifo(workload, servers).mean() == pytest.approx(expected_s, rel=0.08)


def erlang_c(servers, offered):
    """Probability that an arrival finds all servers busy."""
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return last / (sum(offered**k / math.factorial(k) for k in range(servers)) + last)
