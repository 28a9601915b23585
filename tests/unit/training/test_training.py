"""Runs of training: the same from the same seed, however often they are interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.unit.training.micro import MICRO
from training.tiny_v41.checkpoints import load_checkpoint, newest_checkpoint
from training.tiny_v41.optimizer import orthogonalized
from training.tiny_v41.rendering import write_text_files
from training.tiny_v41.run import TEXT_FILES, train
from training.tiny_v41.stages import STAGES, Stage
from training.tiny_v41.trainer import CHECKPOINTS, RunOptions

STAGE = replace(STAGES[0], tokens=1500, max_tokens=192, step_tokens=400)
NEXT = replace(STAGE, name="next", tokens=100_000, selects=True)


@pytest.fixture(scope="module")
def text_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("text") / TEXT_FILES
    write_text_files(found)
    return found


def run(directory: Path, text_files: Path, steps: int, num_processes: int = 1) -> None:
    directory.mkdir(exist_ok=True)
    if not (directory / TEXT_FILES).exists():
        (directory / TEXT_FILES).symlink_to(text_files)
    stages: tuple[Stage, ...] = (STAGE, NEXT)
    options = RunOptions(directory, stages, MICRO, max_steps=steps)
    train(options, num_processes=num_processes, num_threads=1)


def trained(directory: Path) -> tuple[int, int, dict[str, torch.Tensor]]:
    path = newest_checkpoint(directory / CHECKPOINTS)
    assert path is not None
    progress, weights, _ = load_checkpoint(path)
    return progress.stage, progress.step, weights


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path: Path, text_files: Path) -> None:
    run(tmp_path / "whole", text_files, 6)
    for steps in (1, 3, 2):
        run(tmp_path / "parts", text_files, steps)
    whole, parts = trained(tmp_path / "whole"), trained(tmp_path / "parts")
    assert whole[:2] == parts[:2]
    assert whole[0] == 1, "the steps reach the next stage"
    for name, value in whole[2].items():
        assert torch.equal(value, parts[2][name]), name


def test_every_learned_tensor_moves(tmp_path: Path, text_files: Path) -> None:
    run(tmp_path, text_files, 1)
    before = trained(tmp_path)[2]
    run(tmp_path, text_files, 5)
    after = trained(tmp_path)[2]
    still = [n for n, v in before.items() if not n.startswith("mtp.") and torch.equal(v, after[n])]
    assert not still


def test_an_orthogonal_step_has_singular_values_of_about_one() -> None:
    grad = torch.randn((3, 48, 32), generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalized(grad))
    assert 0.5 < float(values.min()) <= float(values.max()) < 1.4
