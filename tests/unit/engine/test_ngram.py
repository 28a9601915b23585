"""Prompt lookup guesses what came next last time, and learns how often that is right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_engine.sampling import SamplingState
from rorqual_engine.speculation import Guesses, GuessRequest
from rorqual_engine.speculation.ngram import LONGEST, NgramDrafter, find_match


def guess(drafter: NgramDrafter, memory, num_wanted: int = 9) -> Guesses:
    (found,) = drafter.guess([GuessRequest(memory, 0, 0, SamplingState(), None, num_wanted)])
    return found


@pytest.mark.parametrize(
    "ids, match",
    [
        ([1, 2, 3], None),
        ([1, 2, 3, 1, 2], (2, 3)),
        ([9, 2, 5, 1, 2, 7, 1, 2], (2, 3)),
        ([4, 5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], (3, 8)),  # longer beats nearer
        ([7, 7, 7, 7], (3, 1)),
        ([2, 9, 2], None),
        ([2], None),
        ([], None),
    ],
)
def test_the_longest_match_says_where_to_look(ids, match) -> None:
    assert find_match(np.array(ids, np.int32)) == match


@given(st.lists(st.integers(0, 3), max_size=60))
def test_a_match_is_the_longest_there_is_and_then_the_latest(ids) -> None:
    matches = []
    for end in range(len(ids) - 1):
        length = 0
        while length <= end and length < LONGEST and ids[end - length] == ids[-1 - length]:
            length += 1
        if length >= 2:
            matches.append((length, end))
    expected = None
    if matches:
        length, end = max(matches)
        expected = (length, len(ids) - 1 - end)
    assert find_match(np.array(ids, np.int32)) == expected


def test_what_came_next_is_guessed_and_repeated_as_far_as_it_is_wanted() -> None:
    drafter = NgramDrafter(5)
    memory = drafter.open(np.array([8, 1, 2, 3, 1]))
    assert guess(drafter, memory).token_ids == ()
    memory.note_tokens([2])
    assert guess(drafter, memory).token_ids == [3, 1, 2, 3, 1]
    assert guess(drafter, memory, num_wanted=2).token_ids == [3, 1]


def test_history_grows_without_bound() -> None:
    drafter = NgramDrafter(3)
    memory = drafter.open(np.array([], np.int64))
    for start in range(0, 3000, 30):
        memory.note_tokens(range(start, start + 30))
    memory.note_tokens([100, 101])
    assert guess(drafter, memory).token_ids == [102, 103, 104]


def test_verdicts_move_the_confidence_of_matches_of_that_length() -> None:
    drafter = NgramDrafter(3)
    memory = drafter.open(np.array([1, 2, 3, 1, 2]))
    before = guess(drafter, memory).confidences[0]
    memory.note_verdict(3, 0)
    worse = guess(drafter, memory).confidences[0]
    for _ in range(5):
        memory.note_verdict(3, 3)
    better = guess(drafter, memory).confidences[0]
    assert worse < before < better < 1
    memory.note_tokens([3])  # a match of three: nothing is known of those
    fresh = drafter.open(np.array([1, 2, 3, 1, 2, 3]))
    assert guess(drafter, memory).confidences == guess(drafter, fresh).confidences
