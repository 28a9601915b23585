"""When a generation ends."""

from __future__ import annotations

import pytest
from rorqual_decode.generation import FinishReason
from rorqual_decode.stopping import StopRule, make_stop_rule

from tests.unit.decode.specs import sampling_spec

RULE = StopRule(frozenset({7, 9}), max_output_tokens=3)


@pytest.mark.parametrize(
    ("token_id", "num_output", "grammar_finished", "expected"),
    [
        (1, 1, False, None),
        (7, 1, False, FinishReason.STOP),
        (1, 3, False, FinishReason.LENGTH),
        (9, 3, False, FinishReason.STOP),
        (1, 1, True, FinishReason.STOP),
    ],
)
def test_the_reason_of_an_end(token_id, num_output, grammar_finished, expected):
    assert RULE.finish_after(token_id, num_output, grammar_finished) is expected


def make(num_prompt_tokens: int = 10, **fields) -> StopRule:
    return make_stop_rule(
        sampling_spec(**fields),
        eos_token_ids=(2, 3),
        num_prompt_tokens=num_prompt_tokens,
        max_context_tokens=100,
    )


def test_end_tokens_count_unless_ignored():
    assert make(stop_token_ids=frozenset({8})).stop_ids == {2, 3, 8}
    assert make(stop_token_ids=frozenset({8}), ignore_eos=True).stop_ids == {8}


def test_the_context_bounds_the_output():
    assert make(max_new_tokens=50).max_output_tokens == 50
    assert make(max_new_tokens=500).max_output_tokens == 90
    assert make(num_prompt_tokens=100, max_new_tokens=500).max_output_tokens == 1
