"""Who goes at scale-down: whoever has least to finish or to hand over."""

from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy import DrainCandidate, choose_drained


def test_pending_first_then_fewest_requests_then_least_kv():
    candidates = [
        DrainCandidate("a", num_requests=2, kv_tokens=10),
        DrainCandidate("b", num_requests=1, kv_tokens=900),
        DrainCandidate("c", num_requests=1, kv_tokens=100),
        DrainCandidate("d", is_pending=True),
        DrainCandidate("e", num_requests=0),
    ]
    assert choose_drained(candidates, 4).instance_ids == ("d", "e", "c", "b")
    assert "1 requests" in choose_drained(candidates, 3).reason
    assert choose_drained(candidates, 0).instance_ids == ()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8), st.integers(0, 9))
def test_the_choice_does_not_depend_on_the_order_and_leaves_no_idler_one(loads, num):
    candidates = [DrainCandidate(f"i{n}", False, *load) for n, load in enumerate(loads)]
    chosen = choose_drained(candidates, num).instance_ids
    assert chosen == choose_drained(candidates[::-1], num).instance_ids
    assert len(chosen) == min(num, len(candidates))
    of = {c.instance_id: (c.num_requests, c.kv_tokens) for c in candidates}
    kept = [of[i] for i in of if i not in chosen]
    assert all(of[i] <= work for i in chosen for work in kept)
