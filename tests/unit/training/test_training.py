"""Runs of training: the same from the same seed, however often they are interrupted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.deepseek.vision import VisionTower
from rorqual_engine.models.options import LoadOptions

from tests.unit.training.micro import MICRO
from training.checkpoints import load_checkpoint, newest_checkpoint
from training.optimizer import orthogonalized
from training.tiny_v41.export import export
from training.tiny_v41.model.weights import first_weights
from training.tiny_v41.rendering import write_text_files
from training.tiny_v41.run import TEXT_FILES, NoModel, train
from training.tiny_v41.stages import STAGES, Stage
from training.tiny_v41.trainer import CHECKPOINTS, RunOptions

SHARES = {**STAGES[0].shares, "shapes": 8.0}
STAGE = replace(STAGES[0], tokens=600, max_tokens=128, step_tokens=200, shares=SHARES)
NEXT = replace(STAGE, name="next", tokens=100_000, selects=True)


@pytest.fixture(scope="module")
def text_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("text") / TEXT_FILES
    write_text_files(found)
    return found


def run(
    directory: Path, text_files: Path, steps: int, num_processes: int = 1, part: str = "model"
) -> None:
    directory.mkdir(exist_ok=True)
    if not (directory / TEXT_FILES).exists():
        (directory / TEXT_FILES).symlink_to(text_files)
    stages: tuple[Stage, ...] = (STAGE, NEXT)
    options = RunOptions(directory, stages, MICRO, part=part, max_steps=steps)  # type: ignore[arg-type]
    train(options, num_processes=num_processes, num_threads=1)


Trained = tuple[int, int, dict[str, torch.Tensor]]
"""Stage, step of the stage, weights."""


def trained(directory: Path) -> Trained:
    path = newest_checkpoint(directory / CHECKPOINTS)
    assert path is not None
    progress, weights, _ = load_checkpoint(path)
    return progress.stage, progress.step, weights


@dataclass(frozen=True)
class Runs:
    """Five steps at once; one step, and then the other four."""

    whole: Trained
    begun: Trained
    finished: Trained


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text_files: Path) -> Runs:
    whole, parts = (tmp_path_factory.mktemp(name) for name in ("whole", "parts"))
    run(whole, text_files, 5)
    run(parts, text_files, 1)
    begun = trained(parts)
    run(parts, text_files, 4)
    return Runs(trained(whole), begun, trained(parts))


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(runs: Runs) -> None:
    assert runs.whole[:2] == runs.finished[:2]
    assert runs.whole[0] == 1, "the steps reach the next stage"
    for name, value in runs.whole[2].items():
        assert torch.equal(value, runs.finished[2][name]), name


def test_every_learned_tensor_moves(runs: Runs) -> None:
    before, after = runs.begun[2], runs.finished[2]
    still = [n for n, v in before.items() if not n.startswith("mtp.") and torch.equal(v, after[n])]
    assert not still


def test_two_processes_learn_what_one_does(tmp_path: Path, text_files: Path) -> None:
    for count in (1, 2):
        run(tmp_path / str(count), text_files, 2, count)
    one, two = trained(tmp_path / "1"), trained(tmp_path / "2")
    assert one[:2] == two[:2] == (0, 2)
    for name in ("embed.weight", "layers.4.attn.wq_b.weight", "layers.2.ffn.experts.w2"):
        torch.testing.assert_close(two[2][name], one[2][name], rtol=0, atol=2e-2)
        assert not torch.equal(two[2][name], first_weights(MICRO, 0)[name])


def test_a_draft_module_learns_beside_a_model_that_stays(tmp_path: Path, text_files: Path) -> None:
    with pytest.raises(NoModel):
        run(tmp_path / "draft", text_files, 1, part="draft")
    run(tmp_path, text_files, 1)
    run(tmp_path / "draft", text_files, 3, part="draft")
    model, drafted = trained(tmp_path)[2], trained(tmp_path / "draft")[2]
    moved = {name for name, value in model.items() if not torch.equal(value, drafted[name])}
    assert moved == {name for name in model if name.startswith("mtp.")}
    run(tmp_path, text_files, 1)
    run(tmp_path / "draft", text_files, 1, part="draft")
    model, drafted = trained(tmp_path)[2], trained(tmp_path / "draft")[2]
    moved = {name for name, value in model.items() if not torch.equal(value, drafted[name])}
    assert moved == {name for name in model if name.startswith("mtp.")}, "the model has learned on"


def test_an_export_is_a_model_that_the_engine_loads(tmp_path: Path, text_files: Path) -> None:
    run(tmp_path, text_files, 1)
    assert export(tmp_path, tmp_path / "plain", MICRO) is None
    model = load_model(tmp_path / "plain")
    assert isinstance(model, DeepseekModel) and model.dspark is None
    run(tmp_path / "draft", text_files, 1, part="draft")
    found, drafting = export(tmp_path, tmp_path / "b", MICRO, num_calibrated=2), tmp_path / "b"
    assert found is not None
    model = load_model(drafting, options=LoadOptions(drafts=True))
    assert isinstance(model, DeepseekModel) and model.dspark is not None
    assert model.dspark.config.temperatures == found.temperatures
    assert VisionTower.load(drafting, MICRO, torch.device("cpu"), torch.bfloat16)


def test_an_orthogonal_step_has_singular_values_of_about_one() -> None:
    grad = torch.randn((3, 48, 32), generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalized(grad))
    assert 0.5 < float(values.min()) <= float(values.max()) < 1.4
