"""How many guessed tokens a decode step checks, and whose.

Checking one more guess makes a step longer and, if it is taken, saves its sequence a whole step. A
guess's survival is the chance that it and all before it are taken.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import mul
from typing import Literal, NamedTuple

from rorqual_policy.step_fit import Refinement, RefineParams, StepSample, refine

DrafterName = Literal["auto", "none", "ngram", "dspark"]
GuessSchedule = Literal["current", "lagged", "fixed"]
"""What the number of guesses that a step checks follows: the confidences of these very guesses,
those of LAG_STEPS steps before, or nothing: all are checked."""
LAG_STEPS = 2
"""A device that prepares a step while another runs knows no later confidences in time."""
MOST_GUESSES = 16
"""About one sequence in one step: so many tokens every kind of its state can take back."""
LEAST_SURVIVAL = 1e-6
"""Guesses below are never worth a row."""
LONGEST_PAUSE_STEPS = 128
"""Guesses that take as long as a step cost less than one hundredth then."""
_SEQUENCE_SHARE = 0.01
"""Of the shortest step, which a sequence makes a step longer. Source: rorqual-tiny-v41 on two
cores, 64 sequences against eight with as many rows."""
_LATELY = RefineParams(memory_steps=100, trust_steps=0.1)
_MOST_HALVES = 32
_WORTH_TRYING = 0.98
"""Of the speed without guesses; a pause would also miss the next good guess."""


class StepProfile(NamedTuple):
    """Measured times of decode steps, by rows. Check it with `checked_profile`."""

    num_rows: tuple[int, ...]
    """Ascending, the first at least 1."""
    step_s: tuple[float, ...]
    """Of a step with so many rows."""


class BudgetDecision(NamedTuple):
    """What `choose_budget` says, and why."""

    num_guesses: int
    """Of all sequences together."""
    tokens_per_s: float
    """Expected with these, making guesses included."""
    plain_tokens_per_s: float
    """Expected where nobody makes guesses."""


class Pause(NamedTuple):
    """Steps without guesses."""

    num_steps: int
    """After so many somebody guesses again."""
    num_others: int
    """Or as soon as so many sequences run that did not when it began: they may be easier."""


NO_PAUSE = Pause(0, 0)


def checked_profile(profile: StepProfile) -> StepProfile:
    """The profile itself. Raises: ValueError unless it has a time > 0 for ascending rows."""
    rows, times = profile
    is_ascending = all(a < b for a, b in pairwise(rows))
    if not rows or len(rows) != len(times) or rows[0] < 1 or not is_ascending:
        raise ValueError(f"need one time for each of ascending row counts >= 1; got {profile}")
    if min(times) <= 0:
        raise ValueError(f"need step times > 0; got {profile}")
    return profile


def estimate_step_time_s(profile: StepProfile, num_rows: int) -> float:
    """Between two measured counts on the line between them; outside by the nearest line, but never
    less than the shortest measured step."""
    rows, times = profile
    if len(rows) == 1:
        return times[0]
    right = next((i for i in range(1, len(rows)) if rows[i] >= num_rows), len(rows) - 1)
    slope_s = (times[right] - times[right - 1]) / (rows[right] - rows[right - 1])
    return max(times[right - 1] + slope_s * (num_rows - rows[right - 1]), min(times))


def calibrated_costs(profile: StepProfile) -> Refinement:
    """What steps cost before any was seen. The profile is of a few sequences without context; more
    of them, their contexts and other processes make steps longer."""
    return Refinement.of((1.0, _SEQUENCE_SHARE * min(profile.step_s)))


def note_step(
    costs: Refinement, profile: StepProfile, num_rows: int, num_sequences: int, took_s: float
) -> Refinement:
    """What steps cost after one more."""
    features = estimate_step_time_s(profile, num_rows), float(num_sequences)
    return refine(costs, StepSample(features, took_s), _LATELY)


def profile_of(profile: StepProfile, costs: Refinement, num_sequences: int) -> StepProfile:
    """Of steps with so many sequences, by what steps have cost lately."""
    by_rows, by_sequences = costs.coefficients
    more_s = by_sequences * num_sequences
    return StepProfile(profile.num_rows, tuple(by_rows * t + more_s for t in profile.step_s))


def survivals(confidences: Sequence[float]) -> tuple[float, ...]:
    """From each guess's chance, all before it being taken, to its survival; each in [0, 1]."""
    clamped = (min(max(c, 0.0), 1.0) for c in confidences)
    return tuple(accumulate(clamped, mul))


def choose_budget(
    chances: Sequence[Sequence[float]],
    num_sequences: int,
    profile: StepProfile,
    guessing_s: float = 0.0,
) -> BudgetDecision:
    """The number of guesses with the most expected tokens a second, the fewest among equals.

    chances: survivals of each sequence's guesses; num_sequences: each gives one token anyway.
    guessing_s: what making the guesses adds to a step, however many of them are checked.
    Every number is looked at, for measured times are jagged. Source: DSpark's production form.
    """
    plain_s = estimate_step_time_s(profile, num_sequences)
    best = num_sequences / (plain_s + guessing_s)
    num_guesses, expected = 0, float(num_sequences)
    flat = sorted((c for row in chances for c in row if c >= LEAST_SURVIVAL), reverse=True)
    for count, chance in enumerate(flat, start=1):
        expected += chance
        step_s = estimate_step_time_s(profile, num_sequences + count) + guessing_s
        rate = expected / step_s
        if rate > best:
            best, num_guesses = rate, count
    return BudgetDecision(num_guesses, best, num_sequences / plain_s)


def allocate_guesses(chances: Sequence[Sequence[float]], num_guesses: int) -> list[int]:
    """How many of each sequence's guesses are checked, num_guesses in all where there are so many.

    The likeliest go first; among equals earlier places, then earlier sequences. Survivals never
    rise along a block, so what is chosen of it is always its beginning.
    """
    ranked = sorted(
        (-chance, place, sequence)
        for sequence, row in enumerate(chances)
        for place, chance in enumerate(row)
        if chance >= LEAST_SURVIVAL
    )
    lengths = [0] * len(chances)
    for _, _, sequence in ranked[:num_guesses]:
        lengths[sequence] += 1
    return lengths


def choose_pause(
    decision: BudgetDecision, num_sequences: int, last: Pause, *, is_by_others: bool
) -> Pause:
    """What follows a step with this budget: no pause while making guesses pays or costs hardly
    anything; else twice as long a one as the last, so that dear guesses which never pay are rare.

    num_sequences: that were guessed about. is_by_others: sequences that were not there before had
    ended the last pause; that was tried in vain, so next time there must be twice as many.
    """
    if decision.tokens_per_s >= _WORTH_TRYING * decision.plain_tokens_per_s:
        return NO_PAUSE
    half = max(1, num_sequences // 2)
    if is_by_others:
        num_others = min(2 * last.num_others, _MOST_HALVES * half)
        return Pause(max(1, last.num_steps // 2), num_others)
    return Pause(min(max(1, 2 * last.num_steps), LONGEST_PAUSE_STEPS), last.num_others or half)
