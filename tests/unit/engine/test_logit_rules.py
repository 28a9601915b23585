"""Penalties, biases and minimum length, against the rules written out one token at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_engine.grammar import new_bitmask
from rorqual_engine.logit_rules import LogitEditor, LogitRules, make_editor
from rorqual_engine.sampling import SamplingState, sample

VOCAB = 40
END = 3
TOKENS = st.integers(0, VOCAB - 1)


@dataclass
class Case:
    rules: LogitRules
    prompt: list[int]
    output: list[int]


def _rows(seed: int, rows: int = 1) -> torch.Tensor:
    torch.manual_seed(seed)
    return (3 * torch.randn(rows, VOCAB)).bfloat16().float()


@st.composite
def _cases(draw) -> Case:
    rules = LogitRules(
        frequency_penalty=draw(st.sampled_from([0.0, 0.5, -2.0])),
        presence_penalty=draw(st.sampled_from([0.0, 1.5, -0.25])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.5])),
        logit_bias=tuple(
            draw(st.dictionaries(TOKENS, st.sampled_from([-99.0, -1.0, 2.5, 99.0]))).items()
        ),
        min_new_tokens=draw(st.integers(0, 6)),
    )
    return Case(rules, draw(st.lists(TOKENS, max_size=30)), draw(st.lists(TOKENS, max_size=90)))


def _plain(row: list[float], case: Case) -> list[float]:
    """Each token on its own, with nothing remembered between steps."""
    rules, bias = case.rules, dict(case.rules.logit_bias)
    edited = []
    for token, logit in enumerate(row):
        if token in case.prompt or token in case.output:
            by = rules.repetition_penalty
            logit = logit / by if logit > 0 else logit * by
        count = case.output.count(token)
        logit -= rules.frequency_penalty * count + rules.presence_penalty * (count > 0)
        logit += bias.get(token, 0.0)
        edited.append(logit)
    return edited


def _editor(case: Case) -> LogitEditor:
    editor = LogitEditor(case.rules, case.prompt, [END])
    for token in case.output:
        editor.note(token)
    return editor


@settings(max_examples=150, deadline=None)
@given(case=_cases(), seed=st.integers(0, 50))
def test_a_row_is_edited_as_the_rules_say(case: Case, seed: int) -> None:
    row = _rows(seed)[0]
    expected = _plain(row.tolist(), case)
    editor = _editor(case)
    if editor.is_active:
        editor.apply(row)
    found = row.tolist()
    if len(case.output) < case.rules.min_new_tokens:
        assert found[END] < min(expected) - 1000
        found[END] = expected[END]
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(case=_cases(), seed=st.integers(0, 50), temperature=st.sampled_from([0.0, 0.7]))
def test_an_edited_row_leaves_its_neighbours_and_the_logits_alone(
    case: Case, seed: int, temperature: float
) -> None:
    logits = _rows(seed, rows=3)
    before = logits.clone()
    states = [SamplingState(temperature, seed=seed, position=i) for i in range(3)]
    among = sample(logits, states, None, [None, _editor(case), None]).ids
    alone = sample(logits[1:2], states[1:2], None, [_editor(case)]).ids
    assert torch.equal(logits, before)
    assert among[1] == alone[0]
    assert among[[0, 2]].tolist() == sample(logits, states).ids[[0, 2]].tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_a_full_bias_bans_or_forces(temperature: float) -> None:
    logits = _rows(1)
    best = int(logits.argmax())
    states = [SamplingState(temperature, seed=s, position=1) for s in range(200)]

    def drawn(*bias: tuple[int, float]) -> set[int]:
        editors = [make_editor(LogitRules(logit_bias=bias), [], [END]) for _ in states]
        return set(sample(logits.expand(200, -1), states, None, editors).ids.tolist())

    assert best not in drawn((best, -100.0))
    assert drawn((7, 100.0)) == {7}
    assert drawn((7, 100.0), (7, 0.0)) == {7}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_outranks_every_rule(temperature: float) -> None:
    """Tokens the grammar forbids are never forced; when it leaves banned ones only, they do."""
    logits = _rows(2, rows=2)
    bitmask = new_bitmask(2, VOCAB)
    bitmask[:] = 0
    bitmask[:, 0] = (1 << 5) | (1 << 9) | (1 << END)
    rules = LogitRules(
        logit_bias=((1, 100.0), (5, -100.0), (9, -100.0)), min_new_tokens=4, presence_penalty=2.0
    )
    states = [SamplingState(temperature, seed=s, position=3) for s in range(2)]
    editors = [make_editor(rules, [], [END]) for _ in states]
    assert set(sample(logits, states, bitmask, editors).ids.tolist()) <= {5, 9, END}


def test_end_tokens_wait_for_the_minimum() -> None:
    logits = _rows(3)
    logits[0, END] = 50.0
    editor = make_editor(LogitRules(min_new_tokens=2), [], [END])
    assert editor is not None
    chosen = []
    for _ in range(3):
        token = int(sample(logits, [SamplingState()], None, [editor]).ids[0])
        editor.note(token)
        chosen.append(token)
    assert END not in chosen[:2]
    assert chosen[2] == END
    assert not editor.is_active


def test_rules_that_change_nothing_need_no_editor() -> None:
    assert make_editor(LogitRules(), [1, 2], [END]) is None


def test_logprobs_stay_those_of_the_model() -> None:
    logits = _rows(4)
    editor = make_editor(LogitRules(logit_bias=((7, 100.0),)), [], [END])
    result = sample(logits, [SamplingState(num_logprobs=2)], None, [editor])
    (scores,) = result.logprobs
    assert scores is not None
    exact = logits[0].double().log_softmax(-1)
    assert scores.logprob == pytest.approx(float(exact[7]))
    assert scores.top_ids == np.argsort(-logits[0].numpy(), kind="stable")[:2].tolist()


@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": float("nan")},
        {"presence_penalty": float("inf")},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": float("inf")},
        {"logit_bias": ((1, float("nan")),)},
    ],
)
def test_numbers_out_of_range_are_refused(fields: dict) -> None:
    with pytest.raises(ValueError, match=r"finite|out of range"):
        LogitRules(**fields)
