"""Which run of a generation counts, and when the place where it runs counts as lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.drain import MOVE_S, plan_drain
from rorqual_policy.runs import (
    STARTS_A_READER,
    Silence,
    SilenceParams,
    decide_silence,
    run_after_loss,
    run_after_move,
)

PARAMS = SilenceParams(ask_s=0.25, absent_s=0.45, frozen_s=3.0)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=STARTS_A_READER - 1))
def test_a_start_outranks_every_move_before_it(moves_between_losses: list[int]) -> None:
    """Whoever starts it again may have seen none of the moves."""
    run = highest = 0
    for num_moves in moves_between_losses:
        for _ in range(num_moves):
            highest = run_after_move(max(run, highest))
        run = run_after_loss(run)
        assert run > highest
        highest = run
    next_reader = run_after_loss(0, reader=1)
    assert next_reader > highest, "it has seen nothing of all that"


@pytest.mark.parametrize(
    ("silent_s", "is_absent", "num_losses", "expected"),
    [
        (0.2, True, 0, Silence.NORMAL),
        (0.3, True, 0, Silence.ASK),
        (0.5, True, 9, Silence.LOST),
        (2.9, False, 0, Silence.ASK),
        (3.0, False, 0, Silence.LOST),
        (11.9, False, 2, Silence.ASK),
        (12.0, False, 2, Silence.LOST),
    ],
)
def test_silence(silent_s: float, is_absent: bool, num_losses: int, expected: Silence) -> None:
    found = decide_silence(silent_s, is_absent=is_absent, num_losses=num_losses, params=PARAMS)
    assert found is expected


@given(st.integers(0, 600), st.integers(0, 120))
def test_a_drain_fits_into_its_time_and_keeps_some_for_moving(total_s, grace_s) -> None:
    plan = plan_drain(total_s, grace_s)
    assert 0 <= plan.grace_s <= grace_s
    assert 0 <= plan.move_s <= MOVE_S
    assert plan.grace_s + plan.move_s <= total_s
    assert plan.grace_s <= plan.move_s or plan.move_s == MOVE_S
    if total_s:
        assert plan.move_s > 0


def test_a_minute_of_grace_needs_84_seconds() -> None:
    assert plan_drain(84.0, 60.0).grace_s == 60.0
