"""Cancelled ids expire and stay bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rorqual_runtime.cancelled import CancelledIds
from rorqual_runtime.clock import ManualClock


async def test_cancelled_ids_are_forgotten_after_their_time() -> None:
    clock = ManualClock()
    ids = CancelledIds(clock)
    ids.add("a")
    await clock.advance(59)
    ids.add("b")
    assert "a" in ids
    await clock.advance(2)
    assert "a" not in ids
    assert "b" in ids
    assert len(ids) == 1


async def test_a_cancelled_choice_is_not_its_request() -> None:
    ids = CancelledIds(ManualClock())
    ids.add("a", 1)
    ids.add("b")
    assert "a" not in ids
    assert [ids.covers("a", index) for index in (0, 1)] == [False, True]
    assert [ids.covers("b", index) for index in (0, 1)] == [True, True]


@given(st.lists(st.sampled_from("abcdefghij"), max_size=50), st.integers(1, 5))
def test_cancelled_ids_stay_bounded_and_keep_the_newest(added: list[str], bound: int) -> None:
    ids = CancelledIds(ManualClock(), max_ids=bound)
    for request_id in added:
        ids.add(request_id)
    newest = list(dict.fromkeys(reversed(added)))[:bound]
    assert len(ids) == len(newest)
    assert all(request_id in ids for request_id in newest)
