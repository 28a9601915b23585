"""How engine threads use the processors they share."""

from __future__ import annotations

import pytest
from rorqual_policy.compute_threads import first_step_pause_s, should_spread_threads


@pytest.mark.parametrize(("num_sequences", "expected"), [(0, False), (1, True), (2, False)])
def test_threads_keep_their_cpus_for_one_sequence_alone(num_sequences: int, expected: bool) -> None:
    assert should_spread_threads(num_sequences) is expected


def test_only_an_idle_engine_pauses_and_only_for_a_moment() -> None:
    assert 0 < first_step_pause_s(0) <= 0.002
    assert first_step_pause_s(1) == first_step_pause_s(32) == 0
