"""The budget is the best there is; what it buys are the likeliest beginnings of blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.draft_budget import (
    NO_PAUSE,
    Pause,
    StepProfile,
    allocate_guesses,
    calibrated_costs,
    checked_profile,
    choose_budget,
    choose_pause,
    estimate_step_time_s,
    note_step,
    profile_of,
    survivals,
)

CHANCES = st.lists(st.lists(st.floats(0, 1), max_size=5).map(survivals), min_size=1, max_size=6)
PROFILES = st.lists(st.floats(0.001, 1), min_size=1, max_size=5).map(
    lambda times: StepProfile(tuple(2**i for i in range(len(times))), tuple(times))
)


def expected_rate(
    chances: list[tuple[float, ...]], lengths: list[int], profile: StepProfile
) -> float:
    tokens = len(chances) + sum(sum(row[:n]) for row, n in zip(chances, lengths, strict=True))
    return tokens / estimate_step_time_s(profile, len(chances) + sum(lengths))


@given(CHANCES, PROFILES)
def test_no_other_budget_gives_more(chances, profile):
    decision = choose_budget(chances, len(chances), profile)
    lengths = allocate_guesses(chances, decision.num_guesses)
    assert sum(lengths) == decision.num_guesses
    assert expected_rate(chances, lengths, profile) == pytest.approx(decision.tokens_per_s)
    for budget in range(sum(map(len, chances)) + 1):
        other = expected_rate(chances, allocate_guesses(chances, budget), profile)
        assert other <= decision.tokens_per_s * (1 + 1e-9)


@given(CHANCES, st.integers(0, 40))
def test_allocation_takes_the_likeliest_beginnings(chances, budget):
    lengths = allocate_guesses(chances, budget)
    taken = [c for row, n in zip(chances, lengths, strict=True) for c in row[:n]]
    left = [c for row, n in zip(chances, lengths, strict=True) for c in row[n:]]
    usable = sum(c >= 1e-6 for row in chances for c in row)
    assert len(taken) == min(budget, usable)
    assert not taken or not left or min(taken) >= max(left)


def test_among_equals_places_go_before_sequences():
    assert allocate_guesses([(1.0, 1.0), (1.0, 1.0)], 2) == [1, 1]
    assert allocate_guesses([(1.0, 1.0), (1.0, 1.0)], 3) == [2, 1]


def test_a_jump_in_the_step_time_is_looked_past():
    """Two more rows cost a lot, but six more cost hardly anything on top."""
    profile = StepProfile((1, 2, 7, 8), (1.0, 1.9, 1.9, 9.0))
    decision = choose_budget([survivals([0.9] * 7)], 1, profile)
    assert decision.num_guesses == 6
    assert choose_budget([survivals([0.5])], 1, profile).num_guesses == 0


def test_a_busy_device_checks_nothing_and_an_idle_one_everything():
    busy, idle = StepProfile((1, 2), (1.0, 2.0)), StepProfile((1, 64), (1.0, 1.0))
    chances = [survivals([0.8, 0.5])] * 4
    assert choose_budget(chances, 4, busy).num_guesses == 0
    assert choose_budget(chances, 4, idle).num_guesses == 8


def test_times_between_and_beyond_what_was_measured():
    profile = StepProfile((2, 4, 8), (1.0, 2.0, 6.0))
    assert [estimate_step_time_s(profile, n) for n in (1, 2, 3, 6, 10)] == [1, 1, 1.5, 4, 8]


@pytest.mark.parametrize("rows, times", [((), ()), ((1, 1), (1.0, 1.0)), ((1,), (0.0,))])
def test_a_profile_without_sense_is_refused(rows, times):
    with pytest.raises(ValueError, match=r"step times|ascending"):
        checked_profile(StepProfile(rows, times))


POOR_AND_DEAR = choose_budget([survivals([0.2])], 1, StepProfile((1, 8), (1.0, 1.7)), 0.5)


def test_guesses_that_do_not_pay_are_made_ever_more_rarely():
    profile = StepProfile((1, 8), (1.0, 1.7))
    rich = choose_budget([survivals([1.0])], 1, profile, guessing_s=0.5)
    cheap = choose_budget([survivals([0.01])], 1, profile, guessing_s=0.01)
    pause, steps = NO_PAUSE, []
    for _ in range(10):
        pause = choose_pause(POOR_AND_DEAR, 1, pause, is_by_others=False)
        steps.append(pause.num_steps)
    assert steps == [1, 2, 4, 8, 16, 32, 64, 128, 128, 128]
    assert choose_pause(rich, 1, pause, is_by_others=False) == NO_PAUSE
    assert cheap.num_guesses == 0
    assert choose_pause(cheap, 1, pause, is_by_others=False) == NO_PAUSE


@pytest.mark.parametrize("num_sequences", [1, 8, 65])
def test_others_who_are_no_easier_must_be_ever_more(num_sequences):
    """However fast requests come and go: half of the steps' sequences at first, then twice that."""
    half = max(1, num_sequences // 2)
    pause, others = Pause(64, 0), []
    for turn in range(8):
        pause = choose_pause(POOR_AND_DEAR, num_sequences, pause, is_by_others=turn > 0)
        others.append(pause.num_others // half)
        assert pause.num_steps >= 1
    assert others == [1, 2, 4, 8, 16, 32, 32, 32]


def test_what_steps_take_tells_rows_from_sequences():
    profile = StepProfile((1, 10, 100), (1.0, 2.0, 4.0))
    costs = calibrated_costs(profile)
    for step in range(300):
        num_rows, num_sequences = (10, 10) if step % 2 else (100, 50)
        took_s = 1.5 * estimate_step_time_s(profile, num_rows) + 0.03 * num_sequences
        costs = note_step(costs, profile, num_rows, num_sequences, took_s)
    found = profile_of(profile, costs, 50)
    assert found.num_rows == profile.num_rows
    assert found.step_s == pytest.approx((3.0, 4.5, 7.5), rel=0.2)
    assert found.step_s[2] - found.step_s[0] == pytest.approx(4.5, rel=0.1)
