"""Tenants that wait share prefill by weight, nobody starves, nobody saves up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.fair_share import FairShare, choose_tenant

WORK = st.floats(0.001, 20.0)


@given(
    st.lists(st.lists(WORK, min_size=30, max_size=60), min_size=2, max_size=5),
    st.floats(0.05, 3.0),
)
def test_tenants_that_always_wait_get_equal_work(works, quantum_s):
    queues = {f"t{i}": list(work) for i, work in enumerate(works)}
    largest_s = max(map(max, works))
    served = dict.fromkeys(queues, 0.0)
    state = FairShare()
    while all(queues.values()):
        decision = choose_tenant(state, [(t, q[0]) for t, q in queues.items()], quantum_s)
        served[decision.tenant] += queues[decision.tenant].pop(0)
        state = decision.state
        lead_s = max(served.values()) - min(served.values())
        assert lead_s <= 2 * (largest_s + quantum_s) + 1e-6
        assert all(credit_s >= -1e-9 for credit_s in state.credit_s.values())


def test_work_follows_the_weights():
    served, state = {"a": 0, "b": 0}, FairShare()
    for _ in range(400):
        decision = choose_tenant(state, [("a", 1.0), ("b", 1.0)], 1.0, {"a": 3.0})
        served[decision.tenant] += 1
        state = decision.state
    assert served["a"] / served["b"] == pytest.approx(3.0, rel=0.03)


def test_who_was_away_has_saved_nothing():
    state = FairShare()
    for _ in range(50):
        state = choose_tenant(state, [("a", 1.0)], 1.0).state
    turns = []
    for _ in range(10):
        decision = choose_tenant(state, [("a", 1.0), ("b", 1.0)], 1.0)
        turns.append(decision.tenant)
        state = decision.state
    assert abs(turns.count("a") - turns.count("b")) <= 2


def test_one_huge_request_is_decided_at_once_and_nobody_waiting_is_no_tenant():
    assert choose_tenant(FairShare(), [("a", 1e9), ("b", 2e9)], 1e-3).tenant == "a"
    assert choose_tenant(FairShare(("a",), {"a": 3.0}), [], 1.0).state == FairShare()
    with pytest.raises(ValueError, match="quantum_s > 0"):
        choose_tenant(FairShare(), [("a", 1.0)], 0.0)
