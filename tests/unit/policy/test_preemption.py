"""Who steps aside when KV pages are short."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.preemption import PageUser, can_resume, choose_to_pause

USERS = st.lists(st.builds(PageUser, st.integers(1, 40), st.integers(0, 8)), min_size=1)


@given(USERS, st.integers(0, 60))
def test_the_others_find_their_pages_or_the_oldest_is_alone(users, num_free) -> None:
    chosen = choose_to_pause(users, num_free)
    assert chosen == list(range(len(users) - 1, len(users) - 1 - len(chosen), -1)), "the youngest"
    assert 0 not in chosen
    left = users[: len(users) - len(chosen)]
    free = num_free + sum(users[place].num_held for place in chosen)
    assert sum(user.num_wanted for user in left) <= free or len(left) == 1
    if chosen:
        one_less = users[: len(left) + 1]
        free -= users[chosen[-1]].num_held
        assert sum(user.num_wanted for user in one_less) > free, "no more than it takes"


def test_nobody_steps_aside_without_need() -> None:
    assert choose_to_pause([PageUser(4, 0), PageUser(4, 2)], num_free=2) == []


def test_who_comes_back_has_room_to_go_on() -> None:
    assert can_resume(4, 1, num_free=5)
    assert not can_resume(4, 1, num_free=4)
