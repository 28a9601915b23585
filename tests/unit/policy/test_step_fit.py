"""Fitted step times: coefficients come back, outliers do not count, refinement stays bounded."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_policy.step_cost import StepCost
from rorqual_policy.step_fit import (
    Refinement,
    RefineParams,
    StepSample,
    decode_features,
    fit_decode_step,
    fit_prefill_cost,
    fit_steps,
    prefill_features,
    refine,
)

COST = StepCost(4e-3, 9e-4, 6e-8, 5e-8)
POINTS = [(q, c) for q in (1, 16, 64, 128, 256, 512) for c in (0, 512, 2048, 6000)]


def _times(noise: float, seed: int) -> list[StepSample]:
    rng = random.Random(seed)
    rows = [prefill_features([point]) for point in POINTS]
    return [
        StepSample(
            row, sum(f * c for f, c in zip(row, COST, strict=True)) * (1 + rng.gauss(0, noise))
        )
        for row in rows
    ]


def test_prefill_coefficients_come_back() -> None:
    cost, error = fit_prefill_cost(_times(0.0, 1))
    assert cost == pytest.approx(COST, rel=1e-6)
    assert error.worst < 1e-6 and error.num_samples == len(POINTS)


def test_three_steps_tell_what_a_step_and_a_token_take() -> None:
    points = ((16, 0), (128, 0), (384, 0))
    samples = [StepSample(prefill_features([(q, c)]), 4e-3 + 9e-4 * q) for q, c in points]
    assert fit_prefill_cost(samples)[0] == pytest.approx((4e-3, 9e-4, 0.0, 0.0), rel=1e-6)


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_a_fifth_of_steps_behind_a_busy_neighbour_changes_little(seed: int) -> None:
    samples = _times(0.02, seed)
    rng = random.Random(seed)
    for index in rng.sample(range(len(samples)), len(samples) // 5):
        row, took_s = samples[index]
        samples[index] = StepSample(row, took_s * rng.uniform(1.7, 4.0))
    cost, _ = fit_prefill_cost(samples)
    for q, c in ((64, 0), (512, 2048), (256, 6000)):
        row = prefill_features([(q, c)])
        fitted = sum(f * x for f, x in zip(row, cost, strict=True))
        assert fitted == pytest.approx(sum(f * x for f, x in zip(row, COST, strict=True)), rel=0.1)


def test_decode_coefficients_come_back_and_none_is_negative() -> None:
    points = [(n, n * length) for n in (1, 2, 4, 8, 16) for length in (128, 1024, 3000)]
    rows = [decode_features(*point) for point in points]
    samples = [StepSample(row, 0.02 + 1e-3 * row[1] + 2e-7 * row[2]) for row in rows]
    params, _ = fit_decode_step(samples)
    got = params.base_s, params.per_request_s, params.per_kv_token_s
    assert got == pytest.approx((0.02, 1e-3, 2e-7), rel=1e-6)
    falling = [StepSample(row, 0.02 + 1e-3 * row[1] - 1e-8 * row[2]) for row in rows]
    assert min(fit_steps(falling).coefficients) == 0.0


@pytest.mark.parametrize("samples", [[], _times(0, 1)[:2], [StepSample((1.0, 1.0), 0.0)] * 3])
def test_samples_that_tell_nothing_are_refused(samples: list[StepSample]) -> None:
    with pytest.raises(ValueError):
        fit_steps(samples)


def test_refinement_follows_a_machine_that_became_slower() -> None:
    state = Refinement.of(COST)
    for sample in _times(0.03, 5) * 40:
        state = refine(state, StepSample(sample.features, 1.6 * sample.took_s))
    for point in ((64, 0), (256, 2048), (512, 6000)):
        row = prefill_features([point])
        now_s, before_s = (
            sum(f * c for f, c in zip(row, coefficients, strict=True))
            for coefficients in (state.coefficients, COST)
        )
        assert now_s == pytest.approx(1.6 * before_s, rel=0.05)


def test_short_steps_that_became_slower_tell_of_deep_ones_too() -> None:
    state = Refinement.of(COST)
    for num_tokens in (3, 40, 500, 8, 120) * 5:
        row = prefill_features([(num_tokens, 0)])
        took_s = 3.0 * sum(f * c for f, c in zip(row, COST, strict=True))
        state = refine(state, StepSample(row, took_s))
    for before, now in zip(COST, state.coefficients, strict=True):
        assert 1.7 * before < now < 3.5 * before


@given(
    st.lists(
        st.tuples(st.integers(1, 8192), st.integers(0, 100_000), st.floats(1e-6, 1e4)),
        max_size=60,
    )
)
@settings(max_examples=50, deadline=None)
def test_refinement_never_leaves_its_limits(steps: list[tuple[int, int, float]]) -> None:
    params = RefineParams(limit=3.0)
    state = Refinement.of(COST)
    for num_tokens, context_tokens, took_s in steps:
        sample = StepSample(prefill_features([(num_tokens, context_tokens)]), took_s)
        state = refine(state, sample, params)
    for now, before in zip(state.coefficients, COST, strict=True):
        assert before / 3.0001 <= now <= before * 3.0001
