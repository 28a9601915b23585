"""What a prefix matches, how blocks leave, and what a resync drops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_kvmeta.index import BlockIndex
from rorqual_kvmeta.records import State, record_keys

from .blocks import NOW, records

NO_KEYS = np.zeros(0, np.uint64)
KINDS = st.lists(
    st.sampled_from(["live", "unknown", "expired", "evicted", "corrupt", "other model"]),
    max_size=200,
)
REASONS = {"unknown": "never_stored", "other model": "never_stored"}


def keys(numbers):
    return record_keys(records(numbers))


def filled(numbers, **fields):
    index = BlockIndex()
    index.apply(records(numbers, **fields), NOW)
    return index


def with_kinds(kinds):
    index = BlockIndex()
    for number, kind in enumerate(kinds):
        state = {"evicted": State.EVICTED, "corrupt": State.CORRUPT}.get(kind, State.LIVE)
        used = NOW - 2000 if kind == "expired" else NOW
        model = 2 if kind == "other model" else 1
        if kind != "unknown":
            index.apply(records([number], state=state, used=used, model=model), NOW)
    return index


@given(KINDS)
@settings(deadline=None, max_examples=40)
def test_a_match_is_all_live_blocks_up_to_the_first_that_is_not(kinds):
    match = with_kinds(kinds).match(1, keys(range(len(kinds))), NOW)
    length = next((i for i, kind in enumerate(kinds) if kind != "live"), len(kinds))
    assert match.num_blocks == length
    missing = kinds[length] if length < len(kinds) else ""
    assert match.miss_reason == REASONS.get(missing, missing)


def test_a_hole_far_behind_the_first_look_ends_the_match():
    index = filled(range(3000))
    index.forget(keys([2345]), State.EVICTED, NOW)
    match = index.match(1, keys(range(3000)), NOW)
    assert (match.num_blocks, match.miss_reason) == (2345, "evicted")


def test_a_replayed_block_ends_an_exact_match_only():
    index = filled(range(100))
    index.apply(records([70, 80], replayed=True), NOW)
    match = index.match(1, keys(range(100)), NOW)
    assert (match.num_blocks, match.num_exact) == (100, 70)
    exact = index.match(1, keys(range(100)), NOW, exact_only=True)
    assert (exact.num_blocks, exact.miss_reason, exact.num_exact) == (70, "replay_boundary", 70)


def test_a_longer_life_stays():
    index = filled([1], lifetime=5000)
    merged = index.merged(records([1, 2], lifetime=10), NOW)
    assert merged["lifetime_s"].tolist() == [5000, 10]


@pytest.mark.parametrize("is_other_store", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("new", [False, True])
def test_a_store_keeps_what_is_exact_and_two_stores_are_as_exact_as_the_worse(
    is_other_store, known, new
):
    index, block = filled([1], replayed=known), records([1], replayed=new)
    block["store"] += is_other_store
    is_replayed = known or new if is_other_store else known and new
    assert index.merged(block, NOW)["flags"].tolist() == [State.LIVE | (8 if is_replayed else 0)]
    index.forget(keys([1]), State.EVICTED, NOW)
    assert index.merged(block, NOW)["flags"].tolist() == [State.LIVE | (8 if new else 0)]


def test_a_use_makes_life_longer_and_never_revives():
    index = filled([1, 2, 3])
    index.forget(keys([2]), State.CORRUPT, NOW)
    later = NOW + 900
    assert len(index.touch(keys([1, 2, 3, 4]), later, 0.05)) == 2
    assert len(index.touch(keys([1, 3]), later + 20, 0.05)) == 0
    assert index.match(1, keys([1]), NOW + 1500).num_blocks == 1
    assert index.match(1, keys([2]), later).miss_reason == "corrupt"
    assert len(index.touch(keys([1]), NOW + 5000, 0.05)) == 0


def test_expired_blocks_are_remembered_for_a_while_and_leased_ones_longer():
    index = filled(range(10))
    after = NOW + 1050
    held = keys([3])[:, 0]

    def sweep(now):
        return sum(len(index.sweep(part, now, 100, held)) for part in index.parts())

    assert sweep(after) == 0
    assert index.num_live == 0
    assert index.match(1, keys([5]), after).miss_reason == "expired"
    assert sweep(NOW + 1200) == 9
    assert index.match(1, keys([5]), NOW + 1200).miss_reason == "never_stored"
    assert index.match(1, keys([3]), NOW + 1200).miss_reason == "expired"


def test_what_a_resync_does_not_meet_is_dropped():
    index = filled(range(10))
    for _ in range(40):  # more often than there are numbers for it
        index.begin_resync()
        index.apply(records(range(5, 10)), NOW)
        for part in index.parts():
            index.drop_unseen(part)
        assert index.num_live == 5
    assert index.match(1, keys([0]), NOW).miss_reason == "never_stored"
    assert index.match(1, keys(range(5, 10)), NOW).num_blocks == 5


def test_an_aborted_resync_drops_nothing_later():
    index = filled(range(10))
    index.begin_resync()
    index.apply(records(range(3)), NOW)
    index.begin_resync()
    index.apply(records(range(10)), NOW)
    assert sum(map(index.drop_unseen, index.parts())) == 0


def test_clearing_spares_other_models_and_tenants():
    index = filled(range(4), model=1, tenant=1)
    index.apply(records(range(10, 14), model=1, tenant=2), NOW)
    index.apply(records(range(20, 24), model=2, tenant=2), NOW)

    def clear(model, tenant):
        return sum(index.clear(part, model, tenant) for part in index.parts())

    assert clear(1, 2) == 4
    assert index.match(1, keys(range(4)), NOW).num_blocks == 4
    assert index.match(2, keys(range(20, 24)), NOW).num_blocks == 4
    assert clear(None, 2) == 4
    assert clear(None, None) == 4
    assert (len(index), index.num_live) == (0, 0)


def test_bytes_are_counted_by_tenant():
    index = filled(range(4), tenant=1)
    index.apply(records(range(3, 6), tenant=2), NOW)  # one block changes hands
    index.apply(records(range(6), tenant=2, state=State.LIVE, used=NOW - 5000)[:1], NOW)
    assert index.owners.live_bytes() == {1: 200, 2: 300}
    index.forget(keys([4]), State.EVICTED, NOW)
    assert index.owners.live_bytes() == {1: 200, 2: 200}
    assert index.num_live == 4


def test_the_last_of_equal_records_counts_and_keys_that_are_none_are_left_out():
    index = BlockIndex()
    twice = np.concatenate([records([1, 2]), records([1], state=State.CORRUPT)])
    index.apply(twice, NOW)
    assert index.match(1, keys([1]), NOW).miss_reason == "corrupt"
    nothing = records([3])
    nothing["hi"] = 1
    index.apply(nothing, NOW)
    assert len(index) == 2


def test_a_block_takes_at_most_100_bytes():
    index = BlockIndex()
    rng = np.random.default_rng(0)
    template = records([1])
    for _ in range(40):
        batch = np.repeat(template, 10_000)
        batch["hi"] = rng.integers(2, 2**64, len(batch), dtype=np.uint64)
        batch["lo"] = rng.integers(2, 2**64, len(batch), dtype=np.uint64)
        index.apply(batch, NOW)
    for part in index.parts():
        index.sweep(part, NOW, 0, NO_KEYS)
    assert index.num_live == 400_000
    assert index.num_bytes / index.num_live <= 100
