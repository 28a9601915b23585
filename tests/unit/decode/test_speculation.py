"""Whatever is guessed and however much of it is checked: the tokens are those without guesses."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from rorqual_decode import speculation as speculation_module
from rorqual_decode.speculation import NO_SPECULATION, Speculation
from rorqual_engine import sampling
from rorqual_engine.models.drafts import Anchor, Drafts, Sampler
from rorqual_engine.speculation import Drafter, GuessRequest, NoDrafter
from rorqual_engine.speculation.dspark import DsparkDrafter
from rorqual_engine.speculation.ngram import NgramDrafter
from rorqual_policy.draft_budget import GuessSchedule, StepProfile
from rorqual_policy.draft_trust import DraftTrust

from tests.unit.decode.markov import PROMPT, FunctionDrafter, MarkovModel, generate, sequence

VOCAB, CELLS, NUM_TOKENS = 3, 4, 4
WEIGHTS = torch.tensor(
    [
        [[1, 2, 1], [2, 1, 1], [1, 1, 2]],
        [[1, 1, 2], [1, 2, 1], [2, 1, 1]],
    ]
)
"""Of CELLS: [position % 2, token before, token]."""
NEAR_WEIGHTS = torch.tensor(
    [
        [[1, 2, 1], [1, 2, 1], [1, 1, 2]],
        [[1, 1, 2], [1, 1, 2], [2, 1, 1]],
    ]
)
CHEAP, DEAR = StepProfile((1, 9999), (1.0, 1.1)), StepProfile((1, 9999), (1.0, 7000.0))
SCHEDULES: tuple[GuessSchedule, ...] = ("current", "lagged", "fixed")


@pytest.fixture
def model() -> MarkovModel:
    return MarkovModel((WEIGHTS / CELLS).log())


@pytest.fixture(autouse=True)
def _enumerated_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed's digit at a place says in which of CELLS equal parts of [0, 1) its noise lies: all
    seeds together are the exact distribution."""

    def uniforms(seeds, positions):
        places = np.asarray(positions) - len(PROMPT)
        return (np.asarray(seeds) // CELLS**places % CELLS + 0.5) / CELLS

    monkeypatch.setattr(sampling, "uniforms", uniforms)


def omniscient(request: GuessRequest, count: int) -> tuple[list[int], list[float]]:
    """Looks at the noise that will judge its guesses, and guesses right where that is high: the
    length it gets says something of the tokens."""
    ids, token_id = [], request.token_id
    for position in range(request.position, request.position + count):
        cumulative = (WEIGHTS[(position - 1) % 2, token_id].cumsum(0) / CELLS).numpy()
        noise = sampling.uniforms([request.sampling.seed], [position])[0]
        token_id = int(np.searchsorted(cumulative, noise, side="right"))
        ids.append(token_id)
    return ids, [0.95 if token_id == 2 else 0.05 for token_id in ids]


class DraftModule:
    """A draft module of the model's own: its table is near the model's."""

    num_drafts = 3

    def draft(self, anchors: Sequence[Anchor], cache: Any, sampler: Sampler) -> Drafts:
        ids = torch.tensor([anchor.token_id for anchor in anchors])
        positions = torch.tensor([anchor.position for anchor in anchors])
        tokens, logits, chances = [], [], []
        for k in range(self.num_drafts):
            logits.append((NEAR_WEIGHTS[(positions + k) % 2, ids] / CELLS).log())
            ids = sampler(k, logits[-1])
            tokens.append(ids)
            chances.append(logits[-1].softmax(-1).gather(1, ids[:, None])[:, 0])
        confidences = torch.stack(chances, 1)
        stacked = torch.stack(logits, 1)
        return Drafts(torch.stack(tokens, 1), stacked, confidences.logit(), confidences)


DRAFTERS: dict[str, Drafter] = {
    "dspark": DsparkDrafter(cast(Any, DraftModule()), cast(Any, None), 3),
    "none": NoDrafter(),
    "ngram": NgramDrafter(3),
    "stubborn": FunctionDrafter(2, lambda request, count: ([0] * count, [0.5] * count)),
    "omniscient": FunctionDrafter(3, omniscient),
}


@pytest.mark.parametrize("profile", [CHEAP, DEAR])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_exact_distribution_is_the_targets(
    model: MarkovModel, name: str, schedule: GuessSchedule, profile: StepProfile
) -> None:
    drafter = DRAFTERS[name]
    seeds = range(CELLS**NUM_TOKENS)
    options = {"temperature": 1.0, "max_new_tokens": NUM_TOKENS}
    sequences = [sequence(seed, drafter, seed=seed, **options) for seed in seeds]
    answers = generate(model, sequences, Speculation(drafter, schedule, profile))
    found = Counter(tuple(answer.token_ids) for answer in answers)
    for ids in product(range(VOCAB), repeat=NUM_TOKENS):
        path = pairwise((PROMPT[-1], *ids))
        factors = [
            int(WEIGHTS[(len(PROMPT) - 1 + i) % 2, before, token])
            for i, (before, token) in enumerate(path)
        ]
        assert found[ids] == np.prod(factors), ids
    if schedule == "fixed" or profile is CHEAP:
        num_helped = sum(answer.num_taken > 0 for answer in answers)
        assert num_helped >= {"omniscient": len(answers), "dspark": 1}.get(name, 0)


@pytest.mark.parametrize("name", ["ngram", "stubborn", "omniscient", "dspark"])
def test_a_seed_names_one_answer_whatever_guesses_and_batch(model: MarkovModel, name: str) -> None:
    drafter = DRAFTERS[name]
    options = {"temperature": 1.0, "max_new_tokens": 30}
    plain = [
        generate(model, [sequence(seed, drafter, seed=seed, **options)], NO_SPECULATION)[0]
        for seed in range(900, 910)
    ]
    together = generate(
        model,
        [sequence(seed, drafter, seed=seed, **options) for seed in range(900, 910)],
        Speculation(drafter),
    )
    assert [a.token_ids for a in together] == [a.token_ids for a in plain]
    assert sum(a.num_guessed for a in together) > 100
    assert all(0 < a.num_taken <= a.num_guessed for a in together)


def test_a_schedule_that_knows_its_guesses_are_poor_checks_fewer(model: MarkovModel) -> None:
    """And stops asking; one that looks back two steps learns it two steps later."""
    poor = FunctionDrafter(2, lambda request, count: ([1] * count, [0.001] * count))
    options = {"temperature": 1.0, "max_new_tokens": 20, "seed": 5}
    profile = StepProfile((1, 3), (1.0, 1.5))
    num_guessed = [
        generate(model, [sequence(0, poor, **options)], Speculation(poor, s, profile))[
            0
        ].num_guessed
        for s in SCHEDULES
    ]
    assert num_guessed[0] == 0
    assert 0 < num_guessed[1] <= 4 < num_guessed[2]


def test_a_drafter_that_is_sure_and_wrong_is_soon_checked_no_more(model: MarkovModel) -> None:
    """Its confidences alone would have every guess checked."""

    def beside(request: GuessRequest, count: int) -> tuple[list[int], list[float]]:
        ids, _ = omniscient(request, count)
        return [(token_id + 1) % VOCAB for token_id in ids], [0.99] * count

    wrong = FunctionDrafter(3, beside)
    options = {"temperature": 1.0, "max_new_tokens": 30}
    speculation = Speculation(wrong, "current", StepProfile((1, 100), (1.0, 30.0)))
    answers = generate(
        model, [sequence(n, wrong, seed=n, **options) for n in range(4)], speculation
    )
    assert 0 < sum(answer.num_guessed for answer in answers) <= 4 * 3 * 4


def test_a_pause_ends_with_the_sequence_that_did_not_pay(
    model: MarkovModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other: what is guessed badly does not keep the next from being guessed well.
    Guessing takes as long as a step."""
    looks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: float(next(looks)))
    monkeypatch.setattr(speculation_module, "time", clock)

    def function(request: GuessRequest, count: int) -> tuple[list[int], list[float]]:
        ids, _ = omniscient(request, count)
        is_easy = request.sampling.seed % 2
        return ids, [0.99 if is_easy else 0.01] * count

    drafter = FunctionDrafter(3, function)
    speculation = Speculation(drafter, "current", StepProfile((1, 4), (1.0, 1.1)))
    options = {"temperature": 1.0, "max_new_tokens": 30}
    found = [
        generate(model, [sequence(n, drafter, seed=n, **options)], speculation)[0] for n in range(6)
    ]
    assert all(answer.num_guessed == 0 for answer in found[::2])
    assert all(answer.num_taken > 15 for answer in found[1::2])


def test_a_pause_turns_no_guess_wrong(model: MarkovModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """All guesses are right, and guessing takes as long as five steps: it pauses ever longer. What
    became of the guesses is that of the step which checked them, not of those in the pause."""
    looks, num_asked = itertools.count(), 0
    verdicts: list[tuple[Sequence[float], int]] = []

    def note(trust: DraftTrust, found: Iterable[tuple[Sequence[float], int]]) -> DraftTrust:
        verdicts.extend(found)
        return trust

    def function(request: GuessRequest, count: int) -> tuple[list[int], list[float]]:
        nonlocal num_asked
        num_asked += 1
        for _ in range(4):
            next(looks)
        return omniscient(request, count)[0], [0.9] * count

    clock = SimpleNamespace(perf_counter=lambda: float(next(looks)))
    monkeypatch.setattr(speculation_module, "time", clock)
    monkeypatch.setattr(speculation_module, "note_verdicts", note)
    drafter = FunctionDrafter(3, function)
    speculation = Speculation(drafter, "current", StepProfile((1, 4), (1.0, 1.1)))
    (answer,) = generate(
        model, [sequence(0, drafter, temperature=1.0, max_new_tokens=30)], speculation
    )
    assert answer.num_taken == answer.num_guessed > 0
    assert len(verdicts) == num_asked < 6
    assert all(num_taken == len(confidences) for confidences, num_taken in verdicts)


def test_a_schedule_needs_a_profile() -> None:
    with pytest.raises(ValueError, match="needs a profile"):
        Speculation(NgramDrafter(3), "current")
