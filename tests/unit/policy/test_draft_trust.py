"""Confidences count for as much as the guesses that had them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.draft_trust import DraftTrust, full_trust, note_verdicts, trusted_chances


def after(trust: DraftTrust, num_steps: int, confidences: list[float], *taken: int) -> DraftTrust:
    for _ in range(num_steps):
        trust = note_verdicts(trust, [(confidences, num) for num in taken])
    return trust


def test_a_module_that_is_sure_and_wrong_is_not_believed_for_long():
    trust = after(full_trust(3), 10, [0.9, 0.9, 0.9], 0)
    first, second, _ = trusted_chances(trust, [0.9, 0.9, 0.9])
    assert first < 0.35
    assert second == pytest.approx(0.9), "nobody knows: what was before it was wrong"


def test_what_is_borne_out_changes_nothing_and_what_is_modest_is_raised():
    trust = after(full_trust(2), 40, [0.5, 0.5], 0, 2, 1, 0)  # 2 of 4, and 1 of 2
    assert trusted_chances(trust, [0.5, 0.8]) == pytest.approx([0.5, 0.8])
    modest = after(full_trust(1), 200, [0.2], 1, 0)
    assert trusted_chances(modest, [0.2]) == pytest.approx([0.5], abs=0.06)


def test_a_place_that_nobody_checks_any_more_is_tried_again():
    trust = after(full_trust(1), 50, [0.9], 0)
    forgotten = after(trust, 300, [0.9])
    assert trusted_chances(trust, [0.9])[0] < 0.15
    assert trusted_chances(forgotten, [0.9])[0] > 0.8


@given(st.lists(st.tuples(st.lists(st.floats(0, 1), max_size=4), st.integers(0, 4)), max_size=9))
def test_chances_stay_chances(verdicts):
    trust = note_verdicts(full_trust(4), [(c, min(n, len(c))) for c, n in verdicts])
    assert all(0 <= chance <= 1 for chance in trusted_chances(trust, [0.0, 0.3, 1.0, 1.0]))
