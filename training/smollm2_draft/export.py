"""A model directory of the model and a run's draft module, as the engine loads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rorqual_engine.manifest import MANIFEST_NAME, read_manifest, write_manifest
from safetensors.torch import save_file

from training.calibration import Calibration, fit_temperatures
from training.checkpoints import newest_checkpoint
from training.smollm2_draft.draft import Weights
from training.smollm2_draft.learner import DraftLearner
from training.smollm2_draft.run import (
    CHECKPOINTS,
    DSPARK,
    HELD_OUT,
    NoTexts,
    RunOptions,
    begin_or_continue,
    known_texts,
    load_frozen,
)
from training.smollm2_draft.texts import Conversation

DRAFT_FILE = "draft.safetensors"
_PASS_TEXTS = 4


def export(run: Path, model_dir: Path, out: Path) -> Calibration:
    """Writes out, a new directory, from the newest weights of a run, with temperatures for their
    confidences. Raises: NoTexts, FileExistsError."""
    if newest_checkpoint(run / CHECKPOINTS) is None:
        raise NoTexts(f"{run / CHECKPOINTS} has no checkpoint")
    if out.exists():
        raise FileExistsError(f"{out} exists: name another with --out, or remove it")
    model, files = load_frozen(model_dir)
    progress, learner = begin_or_continue(RunOptions(run, model_dir, 1), model, files)
    found = calibrated(learner, known_texts(run)[:HELD_OUT])
    temperatures = {"confidence_temperatures": list(found.temperatures)}
    _write(model_dir, out, learner.weights, DSPARK | temperatures, progress.step)
    return found


def calibrated(learner: DraftLearner, texts: list[Conversation]) -> Calibration:
    """Temperatures for texts that were not learned from."""
    parts = [texts[first : first + _PASS_TEXTS] for first in range(0, len(texts), _PASS_TEXTS)]
    judged = [learner.judge(part) for part in parts]
    return fit_temperatures(
        torch.cat([confidences for confidences, _, _ in judged]),
        torch.cat([taken for _, taken, _ in judged]),
    )


def _write(
    model_dir: Path, out: Path, weights: Weights, dspark: Mapping[str, Any], num_steps: int
) -> None:
    """The model's files as they are, and beside them the module's tensors in bf16."""
    shutil.copytree(model_dir, out, ignore=shutil.ignore_patterns(MANIFEST_NAME, DRAFT_FILE))
    tensors = {name: _published(value) for name, value in weights.items()}
    save_file(tensors, out / DRAFT_FILE, metadata={"format": "pt"})
    (out / DRAFT_FILE).chmod(0o644)
    fields = json.loads((out / "config.json").read_text(encoding="utf-8"))
    fields["dspark_config"] = dict(dspark)
    (out / "config.json").write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
    manifest = read_manifest(model_dir)
    model_id, source = (manifest.id, manifest.source) if manifest else (model_dir.name, "unknown")
    write_manifest(out, model_id, f"{source}; training/smollm2_draft after {num_steps} steps")


def _published(value: torch.Tensor) -> torch.Tensor:
    kept = value.detach().clone()
    return kept.to(torch.bfloat16) if kept.is_floating_point() else kept
