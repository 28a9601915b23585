"""Penalties, biases, masks, scores and stops, with guesses and while the steps before are still
being told: those of a plain loop over tokens."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_decode.generation import FinishReason, SamplingSpec, TokenScores
from rorqual_decode.sampling import sampling_state
from rorqual_decode.speculation import Speculation
from rorqual_engine.grammar import GrammarState
from rorqual_engine.logit_rules import LogitRules
from rorqual_engine.sampling import sample
from rorqual_engine.speculation import Drafter, Guesses, GuessRequest, Memory, NoDrafter
from rorqual_engine.speculation.ngram import NgramDrafter

from tests.unit.decode.markov import PROMPT, Answer, MarkovModel, generate, sequence
from tests.unit.decode.specs import sampling_spec

TEXTS = ["a", "b", "c", "d", "ab", "ba", "cc", ""]
END = len(TEXTS) - 1
WHOLE = re.compile(r"(abccab|c)*d")
BEGUN = re.compile(r"(abccab|c)*(a(b(c(ca?)?)?)?|d)?")
"""What the grammar accepts, and what can still become such; behind an `a` it forces text."""
OUTRANKS = 1e4


@cache
def compiled() -> xgrammar.CompiledGrammar:
    info = xgrammar.TokenizerInfo(
        [*TEXTS[:END], "</s>"], vocab_size=len(TEXTS), stop_token_ids=[END]
    )
    return xgrammar.GrammarCompiler(info).compile_regex(WHOLE.pattern)


def is_allowed(said: str, token_id: int) -> bool:
    if token_id == END:
        return WHOLE.fullmatch(said) is not None
    return BEGUN.fullmatch(said + TEXTS[token_id]) is not None


def edited(
    row: np.ndarray, spec: SamplingSpec, output: list[int], ends: Iterable[int]
) -> np.ndarray:
    """The row after the request's rules."""
    rules, found = spec.rules, row.astype(np.float64)
    for token_id in {*PROMPT, *output} if rules.repetition_penalty != 1 else ():
        value = found[token_id]
        scale = 1 / rules.repetition_penalty if value > 0 else rules.repetition_penalty
        found[token_id] = value * scale
    for token_id in set(output):
        count = output.count(token_id)
        found[token_id] -= rules.presence_penalty + rules.frequency_penalty * count
    for token_id, bias in rules.logit_bias:
        found[token_id] += np.sign(bias) * OUTRANKS if abs(bias) >= 100 else bias
    if len(output) < rules.min_new_tokens:
        found[sorted(ends)] -= OUTRANKS
    return found


def scored(raw: np.ndarray, token_id: int, num_top: int) -> TokenScores:
    """Of the row as the model gave it."""
    logprobs = raw - np.log(np.exp(raw).sum())
    top = sorted(range(len(raw)), key=lambda token: (-raw[token], token))[:num_top]
    return TokenScores(
        token_id, float(logprobs[token_id]), tuple(top), tuple(float(logprobs[t]) for t in top)
    )


def plain(model: MarkovModel, spec: SamplingSpec, has_grammar: bool) -> Answer:
    """One token after the other."""
    answer, said = Answer(), ""
    ends = spec.stop_token_ids | (frozenset() if spec.ignore_eos else {END})
    while answer.finish is None:
        output = answer.token_ids
        position = len(PROMPT) + len(output)
        raw = model.row(position - 1, [*PROMPT, *output][-1]).numpy()
        row = edited(raw, spec, output, ends)
        if has_grammar:
            row[[not is_allowed(said, t) for t in range(len(TEXTS))]] = -np.inf
        state = sampling_state(spec, position)
        logits = torch.from_numpy(row.astype(np.float32))[None]
        token_id = int(sample(logits, [state]).ids[0])
        output.append(token_id)
        answer.scores.append(scored(raw.astype(np.float64), token_id, spec.num_logprobs or 0))
        if token_id in ends or (has_grammar and token_id == END):
            answer.finish = FinishReason.STOP
        elif len(output) == spec.max_new_tokens:
            answer.finish = FinishReason.LENGTH
        said += TEXTS[token_id]
    return answer


@dataclass
class Recorded(Memory):
    token_ids: list[int] = field(default_factory=list)

    def note_tokens(self, token_ids: Sequence[int]) -> None:
        self.token_ids += token_ids


class HalfRight(Drafter):
    """Knows the answers, but errs."""

    name = "half right"

    def __init__(self, num_guesses: int, answers: list[list[int]], seed: int) -> None:
        self.num_guesses, self._answers = num_guesses, answers
        self._random = random.Random(seed)

    def open(self, prompt_ids: Any) -> Memory:
        return Recorded()

    def guess(self, requests: Sequence[GuessRequest]) -> list[Guesses]:
        return [self._guess(request) for request in requests]

    def _guess(self, request: GuessRequest) -> Guesses:
        assert isinstance(request.memory, Recorded)
        so_far = request.memory.token_ids
        known = [a for a in self._answers if a[: len(so_far)] == so_far]
        assert known, "the sequence is none of those of the plain loop"
        right = self._random.choice(known)[len(so_far) :]
        count = self._random.randint(0, min(self.num_guesses, request.num_wanted))
        ids = [*right, *[0] * count][:count]
        if ids and self._random.random() < 0.6:
            ids[self._random.randrange(count)] = self._random.randrange(len(TEXTS))
        return Guesses(ids, [0.5] * count)


RULES = st.builds(
    LogitRules,
    frequency_penalty=st.sampled_from([0.0, 0.7, -0.4]),
    presence_penalty=st.sampled_from([0.0, 0.9, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.4, 0.7]),
    logit_bias=st.sampled_from([(), ((2, 1.5),), ((0, -100.0), (4, 2.0)), ((5, 100.0),)]),
    min_new_tokens=st.sampled_from([0, 0, 4]),
)
SPECS = st.builds(
    sampling_spec,
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 3]),
    min_p=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 2**63),
    max_new_tokens=st.integers(1, 14),
    stop_token_ids=st.sampled_from([frozenset(), frozenset({3}), frozenset({3, 6})]),
    ignore_eos=st.booleans(),
    num_logprobs=st.sampled_from([None, None, 0, 3, 20]),
    rules=RULES,
)


@settings(max_examples=30, deadline=None)
@given(
    specs=st.lists(st.tuples(SPECS, st.booleans()), min_size=1, max_size=4),
    seed=st.integers(0, 10**6),
    num_guesses=st.integers(1, 6),
)
def test_answers_with_guesses_are_those_of_single_tokens(specs, seed, num_guesses) -> None:
    shape = (7, len(TEXTS), len(TEXTS))
    model = MarkovModel(2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)))
    expected = [plain(model, spec, has_grammar) for spec, has_grammar in specs]
    drafter = HalfRight(num_guesses, [answer.token_ids for answer in expected], seed)
    sequences = [
        sequence(
            number,
            drafter,
            grammar=GrammarState(compiled()) if has_grammar else None,
            eos_token_ids=(END,),
            **{name: getattr(spec, name) for name in spec.__dataclass_fields__},
        )
        for number, (spec, has_grammar) in enumerate(specs)
    ]
    found = generate(model, sequences, Speculation(drafter))
    for (spec, _), ours, theirs in zip(specs, found, expected, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.finish == theirs.finish
        if spec.num_logprobs is None:
            assert not ours.scores
            continue
        for score, wanted in zip(ours.scores, theirs.scores, strict=True):
            assert (score.token_id, score.top_ids) == (wanted.token_id, wanted.top_ids)
            assert score.logprob == pytest.approx(wanted.logprob, abs=1e-4)
            assert score.top_logprobs == pytest.approx(wanted.top_logprobs, abs=1e-4)


class Stutter:
    """A grammar that always forces text."""

    def forced_tokens(self, limit: int) -> list[int]:
        return [1] * limit


def test_forced_text_that_is_spelt_otherwise_is_guessed_less_and_less() -> None:
    running = sequence(0, NoDrafter(), grammar=Stutter(), max_new_tokens=900)
    running.end_step([0])
    counts = []
    for drawn in [[0], [0], [1, 0], *[[0]] * 7]:
        Speculation(NoDrafter()).guess([running])
        counts.append(running.num_rows - 1)
        running.end_step(drawn)
    assert counts == [16, 8, 4, 16, 8, 4, 2, 1, 0, 0]


@pytest.mark.parametrize("drafter", [NoDrafter(), NgramDrafter(3)], ids=["none", "ngram"])
def test_forced_text_takes_one_forward(drafter: Drafter) -> None:
    """And no grammar means none."""
    shape = (7, len(TEXTS), len(TEXTS))
    table = torch.zeros(shape)
    table[:, :, TEXTS.index("a")] = 1.0
    model = MarkovModel(table)
    options = {"max_new_tokens": 9, "stop_token_ids": frozenset()}
    grammar = GrammarState(compiled())
    (answer,) = generate(
        model, [sequence(0, drafter, grammar=grammar, **options)], Speculation(drafter)
    )
    said = "".join(TEXTS[token_id] for token_id in answer.token_ids)
    assert BEGUN.fullmatch(said)
    assert answer.num_taken > 0 and len(model.num_rows) < len(answer.token_ids) - 1
    free = MarkovModel(table)
    generate(free, [sequence(0, NoDrafter(), **options)], Speculation(NoDrafter()))
    assert free.num_rows == [1] * 8


@pytest.mark.parametrize(
    ("drawn", "num_checked", "num_right"),
    [([5, 1], 2, 1), ([5], 1, 1), ([1], 1, 0), ([5, 6, 7, 1], 3, 3), ([], 0, 0)],
)
def test_a_right_guess_that_ends_the_answer_counts_as_right(
    drawn: list[int], num_checked: int, num_right: int
) -> None:
    running = sequence(0, NoDrafter(), max_new_tokens=900)
    running.end_step([0])
    running.propose([5, 6, 7])
    running.end_step(drawn)
    assert (running.num_checked, running.num_right) == (num_checked, num_right)
