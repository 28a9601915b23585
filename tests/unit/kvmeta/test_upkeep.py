"""Who leaves first when a tenant has too much; beginnings of prompts are kept for a while."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rorqual_kvmeta.contents import FirstBlocks
from rorqual_kvmeta.upkeep import first_to_go

from .blocks import NOW, records


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30), st.integers(0, 4000))
def test_the_least_recently_used_and_then_the_deepest_go_first(blocks, num_bytes):
    made = records(range(len(blocks)))
    made["used_unix_s"] = [NOW + age for age, _ in blocks]
    made["position"] = [depth for _, depth in blocks]
    gone = first_to_go(made, num_bytes)
    assert len(gone) == min(len(blocks), -(-num_bytes // 100))
    stays = made[~np.isin(made["hi"], gone["hi"])]
    rank = lambda r: (int(r["used_unix_s"]), -int(r["position"]))  # noqa: E731
    if len(gone) and len(stays):
        assert max(map(rank, gone)) <= min(map(rank, stays))


def test_only_another_chain_is_elsewhere():
    first_blocks = FirstBlocks(2)
    first_blocks.note(b"content", b"mine")
    assert first_blocks.elsewhere(b"content", b"mine") is None
    assert first_blocks.elsewhere(b"content", b"yours") == b"mine"
    first_blocks.note(b"2", b"x")
    first_blocks.note(b"3", b"x")
    assert (len(first_blocks), first_blocks.elsewhere(b"content", b"yours")) == (2, None)
