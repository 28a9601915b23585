"""Timed steps: a sample for each point that fits, scratch pages given back."""

from __future__ import annotations

from itertools import count

import pytest
from rorqual_engine.models import CausalModel
from rorqual_engine.step_timing import Timing, time_decode, time_prefill, time_verify


def _ticking(budget_s: float = 4.0, own_tick_s: float | None = None) -> Timing:
    """A clock that a second passes on whenever it is read."""
    ticks, own = count(), count()
    own_clock = None if own_tick_s is None else lambda: own_tick_s * next(own)
    return Timing(budget_s, clock=lambda: float(next(ticks)), own_clock=own_clock)


def test_each_point_that_fits_is_measured(tiny: CausalModel) -> None:
    cache = tiny.new_cache(4)
    points = ((8, 0), (64, 128), (8, 1 << 20))
    samples = time_prefill(tiny, cache, _ticking(), points)
    assert [s.features for s in samples] == [(1, 8, 0, 64), (1, 64, 64 * 128, 64 * 64)]
    assert all(s.took_s == 1.0 for s in samples)
    assert cache.num_used == 0


def test_decode_batches_have_pages_of_their_own(tiny: CausalModel) -> None:
    cache = tiny.new_cache(6)
    samples = time_decode(tiny, cache, _ticking(), ((1, 64), (4, 64), (2, 200), (8, 64)))
    assert [s.features for s in samples] == [(1, 1, 64), (1, 4, 256), (1, 2, 400)]
    assert cache.num_used == 0
    cache.check_integrity()


def test_time_in_which_others_ran_does_not_count(tiny: CausalModel) -> None:
    (sample,) = time_prefill(tiny, tiny.new_cache(4), _ticking(own_tick_s=0.1), ((8, 0),))
    assert 0.1 <= sample.took_s < 0.2


def test_waits_for_other_ranks_count(tiny: CausalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "num_ranks", 2)
    (sample,) = time_prefill(tiny, tiny.new_cache(4), _ticking(own_tick_s=0.1), ((8, 0),))
    assert sample.took_s == 1.0


def test_points_that_no_time_is_left_for_are_not_measured(tiny: CausalModel) -> None:
    points = tuple((num, 0) for num in range(1, 20))
    samples = time_prefill(tiny, tiny.new_cache(4), _ticking(budget_s=2.0), points)
    assert 1 <= len(samples) < len(points)


def test_checking_steps_are_measured_as_far_as_pages_go(tiny: CausalModel) -> None:
    cache = tiny.new_cache(1)
    assert time_verify(tiny, cache, _ticking(1e3)).num_rows == (1, 2, 4, 8, 16, 32, 64, 128)
    assert cache.num_used == 0
    profile = time_verify(tiny, tiny.new_cache(12), _ticking(1e3))
    assert profile.num_rows[-1] == 256
    assert set(profile.step_s) == {1.0}
