"""Held-out exercises: the share whose whole answer is what the model finds likeliest.

With the right answer in front of it, token for token: exactly when all of it is the likeliest, the
model writes it at temperature 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from training.calibration import Calibration, fit_temperatures
from training.tiny_v41.batches import Batch, batches_of
from training.tiny_v41.draft_learner import DraftLearner
from training.tiny_v41.learner import Learner, Passes
from training.tiny_v41.measured import Measured
from training.tiny_v41.rendering import Renderer, Sample
from training.tiny_v41.tasks.draw import Draw
from training.tiny_v41.tasks.mixture import FAMILIES, exercise

_RECALL_TOKENS = (100, 200, 500, 1000, 2000, 4000, 8000)
_LONG_TOKENS = 2000
"""From here on a quarter as many exercises have to do."""


def evaluate(
    learner: Learner,
    renderer: Renderer,
    max_tokens: int,
    *,
    selects: bool,
    seed: int = 0,
    count: int = 32,
) -> dict[str, float]:
    """Exact share by family; recall by length of context up to max_tokens."""
    scores = {}
    for family in FAMILIES:
        if family != "recall":
            samples = held_out_samples(renderer, family, 0, seed, count)
            scores[family] = _score(learner, samples, selects)
    for length in _RECALL_TOKENS:
        if length <= max_tokens:
            fewer = count if length < _LONG_TOKENS else count // 4
            samples = held_out_samples(renderer, "recall", int(length * 0.9), seed, fewer)
            scores[f"recall {length}"] = _score(learner, samples, selects)
    return scores


def evaluate_draft(
    learner: DraftLearner,
    renderer: Renderer,
    max_tokens: int,
    *,
    selects: bool,
    seed: int = 0,
    count: int = 32,
) -> dict[str, float]:
    """Mean tokens of a round at temperature 0, the model's own one included, by family; over places
    of the right answers, as far as the model itself would write them."""
    scores = {}
    for family in FAMILIES:
        context = min(200, max_tokens // 2)
        samples = held_out_samples(renderer, family, context, seed, count)
        found = Measured()
        for batch in batches_of_samples(learner, samples):
            found.add(learner.measure([batch], selects=selects))
        scores[family] = found.accepted_lengths()[family]
    return scores


def calibrate(
    learner: DraftLearner, renderer: Renderer, *, selects: bool, count: int = 256
) -> Calibration:
    """Temperatures of confidences, from exercises of every family that are not held out."""
    confidences, accepted = [], []
    for family in FAMILIES:
        draws = (Draw(f"calibration {number}", held_out=False) for number in range(count))
        samples = [renderer.sample(exercise(family, draw, 150)) for draw in draws]
        for batch in batches_of_samples(learner, samples):
            found = learner.judge(batch, selects=selects)
            confidences.append(found[0])
            accepted.append(found[1])
    return fit_temperatures(torch.cat(confidences), torch.cat(accepted))


def held_out_samples(
    renderer: Renderer, family: str, context_tokens: int, seed: int, count: int
) -> list[Sample]:
    """Of one family; context_tokens: as in mixture.exercise."""
    return [
        renderer.sample(
            exercise(family, Draw(f"evaluation {seed} {number}", held_out=True), context_tokens)
        )
        for number in range(count)
    ]


def _score(learner: Learner, samples: list[Sample], selects: bool) -> float:
    batches = batches_of_samples(learner, samples)
    found = [learner.measure([batch], selects=selects).exact for batch in batches]
    exact = [one for by_family in found for values in by_family.values() for one in values]
    return round(sum(exact) / len(exact), 3)


def batches_of_samples(learner: Passes, samples: list[Sample]) -> Iterator[Batch]:
    """For a look at them, nothing to be learned."""
    config = learner.config
    assert config.image_token_id is not None
    return batches_of(samples, config.window, config.image_token_id, 0.0, 0)
