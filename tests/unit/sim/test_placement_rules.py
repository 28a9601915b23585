"""Decode ranks stay even under the estimated step; local caches are seen by who looks for them."""

from dataclasses import replace

import numpy as np
import pytest
from rorqual_policy.placement import PlacementParams
from rorqual_policy.prefill_policy import BucketMode, deepseek_policy
from rorqual_policy.step_cost import STUDY_COST
from rorqual_sim import prefill_state as rule
from rorqual_sim.decode_routing import (
    KV_ONLY,
    REQUESTS_ONLY,
    ROUND_ROBIN,
    estimated_step,
    simulate_decode,
)
from rorqual_sim.prefill import PrefillFleet, PushRule, simulate_prefill
from rorqual_sim.workloads import work_of

from tests.unit.sim.loads import workload_of
from tests.unit.sim.test_traces import trace_of

pytestmark = pytest.mark.timeout(400)  # compiling takes seconds of an idle core


def test_both_terms_beat_either_and_a_round_robin():
    rng = np.random.default_rng(0)
    inputs = np.minimum(rng.lognormal(9, 1.2, 5000), 200_000).astype(np.int64)
    outputs = rng.integers(20, 600, 5000)
    params = PlacementParams()

    def excess(decode_rule):
        balance = simulate_decode(
            inputs, outputs, rule=decode_rule, params=params, num_ranks=16,
            batch_per_rank=32, duration_s=60.0, seed=1,
        )  # fmt: skip
        assert balance.batch_per_rank == pytest.approx(32, rel=0.25)
        assert 1 <= balance.whole <= balance.variable
        return balance.variable - 1

    ours = excess(estimated_step(params))
    assert ours < 0.6 * excess(REQUESTS_ONLY)
    assert ours < 0.6 * excess(KV_ONLY)
    assert ours < 0.4 * excess(ROUND_ROBIN)


@pytest.mark.parametrize("placement", [rule.CACHE_AWARE, rule.KV_COST, rule.LMETRIC])
def test_a_rank_that_has_the_prefix_computes_only_the_rest(placement):
    """The same prompt again and again on an idle fleet: the first is computed, the rest reused."""
    requests = [(10.0 * i, list(range(20))) for i in range(6)]
    trace = trace_of(requests, block_tokens=512)
    workload = workload_of(trace.arrival_s, trace.input_tokens, STUDY_COST)
    policy = replace(deepseek_policy(STUDY_COST), buckets=BucketMode.POOLED)
    fleet = PrefillFleet(2, 4)

    def waits(cache_s):
        push = PushRule(placement, cache_s)
        return simulate_prefill(workload, fleet, policy, STUDY_COST, push=push, trace=trace).ttft_s

    ttft_s = waits(cache_s=15.0)
    whole_s = work_of(STUDY_COST, trace.input_tokens, np.zeros(6, np.int64)) + STUDY_COST.a0_s
    assert ttft_s[0] == pytest.approx(whole_s[0])
    assert np.all(ttft_s[1:] < 0.1 * whole_s[0])
    assert np.allclose(waits(cache_s=5.0), whole_s)
