"""What is said of a trained model: replay, loads of experts, answers of the bare engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rorqual_recipe.output.events import ContentDelta, ToolArgumentsDelta, ToolCallBegan

from tests.unit.training.micro import MICRO
from training.tiny_v41 import curve
from training.tiny_v41.bare import message_of
from training.tiny_v41.evaluation import held_out_samples
from training.tiny_v41.expert_load import Loads, draw, learner_of, loads_of
from training.tiny_v41.export import write_model
from training.tiny_v41.model.weights import first_weights
from training.tiny_v41.rendering import Renderer, write_text_files
from training.tiny_v41.replay import Passes
from training.tiny_v41.tasks.mixture import FAMILIES


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text, found = (tmp_path_factory.mktemp(name) for name in ("text", "model"))
    write_text_files(text)
    write_model(found / "micro", text, MICRO, first_weights(MICRO, 0), "nothing")
    return found / "micro"


def test_replay_is_exact_within_a_window_and_not_beyond(model_dir: Path) -> None:
    passes, renderer = Passes(model_dir, longest=512), Renderer(model_dir)
    for length, is_exact in ((30, True), (300, False)):
        (sample,) = held_out_samples(renderer, "recall", length, 0, 1)
        assert (sample.num_prompt_tokens <= MICRO["sliding_window"]) == is_exact
        found = passes.log_shares(sample)
        assert len(found["exact"]) == len(sample) - sample.last_answer
        for kind in ("decoder tail", "encoder replay"):
            assert torch.equal(found[kind], found["exact"]) == is_exact, kind


def test_loads_of_experts_are_shares_of_an_even_one(model_dir: Path, tmp_path: Path) -> None:
    loads: Loads = loads_of(learner_of(model_dir), Renderer(model_dir), 0, 1)
    assert set(loads) == set(FAMILIES)
    for layers in loads.values():
        means = torch.tensor(layers).mean(1)
        torch.testing.assert_close(means, torch.ones(MICRO["num_hidden_layers"]))
    draw(loads, tmp_path / "loads.png")
    assert (tmp_path / "loads.png").stat().st_size > 1000


def test_a_curve_is_drawn_from_the_steps_of_a_log(tmp_path: Path) -> None:
    step = {"stage": 0, "tokens": 4096, "answer_loss": 2.0, "exact": {"recall": 0.5}}
    later = {**step, "stage": 1, "tokens": 8192, "answer_loss": 1.0}
    lines = (step, {"stage": 0, "step": 250, "held_out": {"recall 100": 0.4}}, later)
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    assert curve.lines_of(log) == [step, later]
    assert curve.smoothed([1.0, 2.0, 6.0], 2) == [1.0, 1.5, 4.0]
    curve.draw(curve.lines_of(log), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_a_bare_answer_reads_as_one_over_http() -> None:
    events = [
        ContentDelta("On "),
        ContentDelta("it."),
        ToolCallBegan(0, "call_1", "get_time"),
        ToolArgumentsDelta(0, '{"city":'),
        ToolArgumentsDelta(0, ' "Oslo"}'),
    ]
    arguments = json.dumps({"city": "Oslo"})
    call = {"function": {"name": "get_time", "arguments": arguments}}
    assert message_of(events) == {"content": "On it.", "tool_calls": [call]}
