"""Expired blocks go first, then those that are worth least a byte."""

import math
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy import ValueEviction

NOW_S = 1e9
POLICY = ValueEviction()


@dataclass(frozen=True)
class Block:
    num_bytes: int = 1000
    last_used_unix_s: float = NOW_S
    expires_unix_s: float | None = None
    num_uses: int = 0
    depth: int = 0


BLOCKS = st.builds(
    Block,
    num_bytes=st.integers(1, 1 << 30),
    last_used_unix_s=st.floats(NOW_S - 1e6, NOW_S + 1e5),
    expires_unix_s=st.none() | st.floats(NOW_S - 1e5, NOW_S + 1e5),
    num_uses=st.integers(0, 1 << 16),
    depth=st.integers(0, 1 << 16),
)

HELD_BLOCKS = st.builds(
    Block,
    last_used_unix_s=st.floats(NOW_S, NOW_S + 601),
    expires_unix_s=st.none() | st.floats(NOW_S - 10, NOW_S + 10),
)


def value(block):
    return POLICY.block_value(block, NOW_S)


def test_what_makes_a_block_worth_more():
    block = Block(last_used_unix_s=NOW_S - 3600, num_uses=1, depth=2)
    assert value(block) < value(replace(block, last_used_unix_s=NOW_S - 60))
    assert value(block) < value(replace(block, num_uses=20))
    assert value(block) < value(replace(block, depth=0))
    assert value(block) < value(replace(block, num_bytes=500))
    assert value(replace(block, expires_unix_s=NOW_S)) == 0
    assert value(replace(block, last_used_unix_s=NOW_S + 9e9)) == value(
        replace(block, last_used_unix_s=NOW_S)
    )


def test_equal_blocks_go_from_the_end_of_their_chain():
    blocks = [Block(depth=depth) for depth in (3, 40_000, 40_001, 0)]
    assert POLICY.choose_victims(blocks, now_unix_s=NOW_S, num_wanted=4) == [2, 1, 0, 3]


def is_expired(block):
    return block.expires_unix_s is not None and block.expires_unix_s <= NOW_S


def is_held(block):
    return NOW_S < block.last_used_unix_s <= NOW_S + 600 and not is_expired(block)


@given(st.lists(BLOCKS | HELD_BLOCKS, max_size=30), st.integers(0, 40))
def test_all_expired_and_the_least_valuable_but_none_that_is_held(blocks, num_wanted):
    victims = POLICY.choose_victims(blocks, now_unix_s=NOW_S, num_wanted=num_wanted)
    expired = [i for i, b in enumerate(blocks) if is_expired(b)]
    num_held = sum(is_held(block) for block in blocks)
    assert sorted(victims[: len(expired)]) == expired
    num_most = min(num_wanted, len(blocks) - num_held)
    assert len(victims) == len(set(victims)) == max(len(expired), num_most)
    assert not any(is_held(blocks[victim]) for victim in victims)
    kept = [value(block) for i, block in enumerate(blocks) if i not in victims]
    assert all(value(blocks[v]) <= min(kept, default=float("inf")) for v in victims)


def test_room_is_made_where_a_quarter_of_the_blocks_is_worth_least():
    old, new = Block(last_used_unix_s=NOW_S - 7200), Block()
    segments = [[new] * 8, [], [old] + [new] * 7, [old] * 2 + [new] * 6]
    ranks = POLICY.rank_segments(segments, now_unix_s=NOW_S)
    assert [index for index, _ in ranks] == [3, 2, 0]
    assert ranks[0][1] == value(old) and ranks[2][1] == value(new)


def test_another_size_gives_way_if_its_segment_is_worth_less():
    choose = POLICY.choose_segment_to_drop
    assert choose(None, []) is None and choose(None, [5.0, 3.0]) == 1
    assert choose(3.0, [5.0, 2.9, 2.9]) == 1
    assert choose(3.0, [3.0]) is None


def test_a_segment_with_held_blocks_is_not_dropped_and_ranks_last():
    old, held = Block(last_used_unix_s=NOW_S - 7200), Block(last_used_unix_s=NOW_S + 60)
    segments = [[held] * 8, [held] * 6 + [old] * 2, [Block()] * 8]
    ranks = POLICY.rank_segments(segments, now_unix_s=NOW_S)
    assert [index for index, _ in ranks] == [1, 2, 0]
    assert POLICY.choose_segment_to_drop(None, [math.inf, math.inf]) is None
    assert POLICY.choose_segment_to_drop(None, [math.inf, 5.0]) == 1
