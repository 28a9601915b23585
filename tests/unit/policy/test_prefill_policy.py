"""Who pulls what: order with bounded starvation, buckets that spill or do not, groups by work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.prefill_order import (
    NO_QUEUE,
    PrefillOrder,
    choose_pull_queue,
    prefill_key_s,
)
from rorqual_policy.prefill_policy import assign_groups

INF = float("inf")
KEYS = st.lists(st.one_of(st.just(INF), st.floats(0, 100)), min_size=4, max_size=4)


@given(st.floats(0, 100), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 60))
def test_nobody_is_overtaken_by_later_work_than_the_bound(arrival_s, own_s, other_s, max_wait_s):
    order = PrefillOrder(16.0, max_wait_s)
    later_s = arrival_s + max_wait_s * 1.001 + 1e-6
    assert prefill_key_s(arrival_s, own_s, order) <= prefill_key_s(later_s, other_s, order)


@given(KEYS, st.integers(0, 3), st.one_of(st.just(INF), st.floats(0, 10)))
def test_a_group_that_spills_leaves_no_work_and_prefers_its_own(keys, own, lead_s):
    queue = choose_pull_queue(keys, own, False, lead_s)
    if min(keys) == INF:
        assert queue == NO_QUEUE
    elif queue == own:
        assert keys[own] - lead_s <= min(keys)
    else:
        assert keys[queue] == min(keys)
        assert keys[own] == INF or keys[own] - lead_s > min(keys)
    strict = choose_pull_queue(keys, own, True, lead_s)
    assert strict == (own if keys[own] < INF else NO_QUEUE)


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=6).filter(lambda s: sum(s) > 1e-6),
    st.integers(1, 300),
)
def test_groups_go_where_the_work_is(shares, num_groups):
    own = assign_groups(shares, num_groups)
    assert len(own) == num_groups
    assert all(shares[bucket] > 0 for bucket in own)
    used = sum(share > 0 for share in shares)
    if num_groups >= used:
        assert len(set(own)) == used
    for bucket, share in enumerate(shares):
        fair = share / sum(shares) * num_groups
        assert own.count(bucket) <= max(1, fair + 1)


def test_a_fleet_without_groups_or_work_is_refused():
    for shares, num_groups in (([1.0], 0), ([0.0, 0.0], 3), ([-1.0, 2.0], 3)):
        with pytest.raises(ValueError, match="groups and shares"):
            assign_groups(shares, num_groups)
