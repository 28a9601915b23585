"""Blocks behind a replay are marked, and stored as the policy says."""

from itertools import product

from rorqual_policy.provenance import (
    BlockOrigin,
    Provenance,
    StoredReplays,
    provenance_after,
    stores_block,
)


def test_exact_blocks_are_always_stored():
    assert all(
        stores_block(Provenance.EXACT, origin, stored)
        for origin, stored in product(BlockOrigin, StoredReplays)
    )


def test_replayed_blocks_are_stored_by_origin():
    def stored(stored_replays):
        return {
            origin
            for origin in BlockOrigin
            if stores_block(Provenance.REPLAYED, origin, stored_replays)
        }

    assert stored(StoredReplays.ALL) == set(BlockOrigin)
    assert stored(StoredReplays.CONTINUATION) == {BlockOrigin.CONTINUATION}
    assert stored(StoredReplays.NONE) == set()
    assert all(stores_block(Provenance.REPLAYED, origin) for origin in BlockOrigin)


def test_a_replay_and_a_replayed_prefix_mark_what_follows():
    def after(num_exact, num_used, is_replayed):
        return provenance_after(
            num_exact_blocks=num_exact, num_used_blocks=num_used, is_replayed=is_replayed
        )

    assert after(5, 5, False) is Provenance.EXACT
    assert after(5, 3, False) is Provenance.EXACT
    assert after(0, 0, False) is Provenance.EXACT
    assert after(5, 5, True) is Provenance.REPLAYED
    assert after(3, 5, False) is Provenance.REPLAYED
