"""Guesses from rows: what they are drawn from, with which noise, and how sure they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.drafts import as_the_target_draws
from rorqual_engine.prepare.random_v41 import TINY_V41, write_random_v41
from rorqual_engine.sampling import SamplingState, sample

from tests.unit.engine.deepseek.draft_runs import load_with_drafts, sequence
from tests.unit.engine.deepseek.reference_runs import SMALL, Prompt

DRAFT = {**TINY_V41["dspark_config"], "taps": [4, 5], "noise_id": 301}
IDS = Prompt.random(30).ids


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DeepseekModel:
    directory = tmp_path_factory.mktemp("heads")
    write_random_v41(directory, changes={**SMALL, "dspark_config": DRAFT})
    return load_with_drafts(directory, "bfloat16")


def test_guesses_are_drawn_from_the_logits_that_are_returned(model: DeepseekModel) -> None:
    with sequence(model) as running:
        running.prefill(IDS[:30])
        anchors = [running.anchor(9)] * 400
        states = [SamplingState(temperature=1.5, seed=s, position=31) for s in range(400)]
        found = model.draft(anchors, running.cache, as_the_target_draws(states))
        again = model.draft(anchors[:7], running.cache, as_the_target_draws(states[:7]))
    assert torch.equal(found.tokens[:7], again.tokens)
    assert torch.equal(found.logits[:, 0], found.logits[:1, 0].expand(400, -1))
    chances = torch.softmax(found.logits[0, 0] / 1.5, -1)
    counts = torch.bincount(found.tokens[:, 0], minlength=len(chances)) / 400
    assert (counts - chances).abs().max() < 4 * (chances * (1 - chances) / 400).sqrt().max()
    by_first = {int(t): row for t, row in zip(found.tokens[:, 0], found.logits[:, 1], strict=True)}
    for token, row in zip(found.tokens[:, 0], found.logits[:, 1], strict=True):
        assert torch.equal(row, by_first[int(token)])  # a guess depends on the one before it
    assert len({float(row[0]) for row in by_first.values()}) > 1


def test_every_place_of_a_block_has_the_noise_of_the_targets_draw_there() -> None:
    """Also its cuts: where the logits are the model's own, so is the token."""
    logits = torch.randn(50, 1000, generator=torch.Generator().manual_seed(0))

    def states(position: int) -> list[SamplingState]:
        return [
            SamplingState(1.0 - row % 2, top_k=row, seed=row, position=position, num_logprobs=1)
            for row in range(50)
        ]

    draw = as_the_target_draws(states(31))
    second = draw(1, logits)
    assert second.tolist() == sample(logits, states(32)).ids.tolist()
    assert (second != draw(0, logits)).sum() > 20


def test_confidence_temperatures(tmp_path: Path, model: DeepseekModel) -> None:
    scales = [0.5, 1.0, 2.0, 4.0, 8.0]
    draft = {**DRAFT, "confidence_temperatures": scales}
    write_random_v41(tmp_path, changes={**SMALL, "dspark_config": draft})
    found = []
    for loaded in (model, load_with_drafts(tmp_path, "bfloat16")):
        with sequence(loaded) as running:
            running.prefill(IDS[:30])
            found.append(running.draft(9))
    assert torch.equal(found[0].raw_confidences, found[1].raw_confidences)
    expected = torch.sigmoid(found[0].raw_confidences / torch.tensor(scales))
    assert torch.equal(found[1].confidences, expected)
