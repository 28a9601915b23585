"""Timed steps: a sample for each point that fits, scratch pages given back."""

from __future__ import annotations

from itertools import count

from rorqual_engine.models import CausalModel
from rorqual_engine.step_timing import Timing, time_decode, time_prefill


def _ticking() -> Timing:
    ticks = count()
    return Timing(budget_s=0.0, clock=lambda: float(next(ticks)))


def test_each_point_that_fits_is_measured_once_even_without_time(tiny: CausalModel) -> None:
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
