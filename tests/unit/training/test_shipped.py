"""The model that the repository ships does what its card says."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.tiny_v41.bare import BareAnswers
from training.tiny_v41.grading import is_right
from training.tiny_v41.scores import held_out

MODEL = Path(__file__).resolve().parents[3] / "models" / "tiny-v41"
COUNT = 4


@pytest.fixture(scope="module")
def engine() -> BareAnswers:
    return BareAnswers(MODEL)


@pytest.mark.parametrize("family", ["recall 1000", "tools", "json", "shapes"])
def test_it_answers_held_out_exercises(engine: BareAnswers, family: str) -> None:
    (group,) = [group for group in held_out(1, COUNT) if group.name == family]
    messages = engine.ask(group.exercises)
    right = [is_right(*pair) for pair in zip(group.exercises, messages, strict=True)]
    assert sum(right) >= COUNT - 1, messages
