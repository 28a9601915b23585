"""Which windows leave first."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.window_value import choose_window_victims, window_value

NOW_S = 1000.0


class Held(NamedTuple):
    num_bytes: int
    saved_tokens: int
    used_s: float
    num_uses: int


PLAIN = Held(num_bytes=100, saved_tokens=128, used_s=980.0, num_uses=0)


def order(*windows: Held) -> list[int]:
    return choose_window_victims(windows, NOW_S, sum(window.num_bytes for window in windows))


def test_the_longer_idle_goes_first() -> None:
    assert order(PLAIN, PLAIN._replace(used_s=940.0), PLAIN._replace(used_s=NOW_S)) == [1, 0, 2]


def test_a_window_that_was_gone_on_from_goes_before_one_that_was_not() -> None:
    assert order(PLAIN, PLAIN._replace(num_uses=1)) == [1, 0]


def test_what_many_prompts_share_stays() -> None:
    assert order(PLAIN._replace(num_uses=5), PLAIN) == [1, 0]


def test_what_saves_a_whole_prefix_stays_before_what_saves_one_window() -> None:
    assert order(PLAIN._replace(saved_tokens=4096), PLAIN) == [1, 0]


@given(
    st.lists(
        st.builds(
            Held,
            st.integers(0, 1000),
            st.integers(0, 10**6),
            st.floats(700, 1100),
            st.integers(0, 50),
        ),
        max_size=30,
    ),
    st.integers(-10, 20_000),
)
def test_as_few_of_the_least_valuable_as_are_enough(windows: list[Held], num_bytes: int) -> None:
    victims = choose_window_victims(windows, NOW_S, num_bytes)
    freed = [windows[index].num_bytes for index in victims]
    if len(victims) < len(windows):
        assert sum(freed) >= num_bytes
        kept = [w for index, w in enumerate(windows) if index not in set(victims)]
        if victims:
            most = max(window_value(windows[index], NOW_S) for index in victims)
            assert most <= min(window_value(window, NOW_S) for window in kept)
    assert sum(freed[:-1]) < max(1, num_bytes)
