"""A model directory of a run's weights, as the engine loads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rorqual_engine.manifest import write_manifest
from safetensors.torch import save_file

from training.calibration import Calibration
from training.checkpoints import load_checkpoint, newest_checkpoint
from training.tiny_v41.draft_learner import DRAFT_PREFIX, DraftLearner
from training.tiny_v41.evaluation import calibrate
from training.tiny_v41.model.weights import Weights, published
from training.tiny_v41.rendering import Renderer
from training.tiny_v41.run import DRAFT, TEXT_FILES, NoModel
from training.tiny_v41.trainer import CHECKPOINTS

MODEL_ID = "rorqual-tiny-v41"
_TEXTS = ("tokenizer.json", "tokenizer_config.json", "prompt_profile.json")


def export(
    run: Path, out: Path, fields: Mapping[str, Any], *, num_calibrated: int = 256
) -> Calibration | None:
    """Writes out, a new directory, from the newest weights of a run: with the draft module and
    temperatures for its confidences if it has learned; else with a config that names none.

    num_calibrated: exercises of a family that temperatures are fitted to. Raises: NoModel,
    FileExistsError.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists: name another with --out, or remove it")
    draft = newest_checkpoint(run / DRAFT / CHECKPOINTS)
    path = draft or newest_checkpoint(run / CHECKPOINTS)
    if path is None:
        raise NoModel(f"{run / CHECKPOINTS} has no checkpoint")
    progress, weights, _ = load_checkpoint(path)
    config, found = dict(fields), None
    if draft is None:
        config["dspark_config"] = None
        weights = {name: t for name, t in weights.items() if not name.startswith(DRAFT_PREFIX)}
    else:
        learner = DraftLearner(config, weights)
        found = calibrate(learner, Renderer(run / TEXT_FILES), selects=True, count=num_calibrated)
        temperatures = {"confidence_temperatures": list(found.temperatures)}
        config["dspark_config"] = {**config["dspark_config"], **temperatures}
    source = f"training/tiny_v41 after {progress.total_tokens} tokens"
    write_model(out, run / TEXT_FILES, config, weights, source)
    return found


def write_model(
    out: Path, text_files: Path, config: Mapping[str, Any], weights: Weights, source: str
) -> None:
    """A new directory; weights: as training has them. The draft module, which learns later, gets a
    file of its own: the model's stays as it is."""
    out.mkdir(parents=True)
    tensors = published(weights)
    drafts = {name: tensor for name, tensor in tensors.items() if name.startswith(DRAFT_PREFIX)}
    texts = {name: tensor for name, tensor in tensors.items() if name not in drafts}
    for name, part in (("model", texts), ("draft", drafts)):
        if part:
            save_file(part, out / f"{name}.safetensors", metadata={"format": "pt"})
            (out / f"{name}.safetensors").chmod(0o644)
    _write_json(out / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    _write_json(out / "generation_config.json", {**ids, "pad_token_id": 2, "temperature": 0.0})
    for name in _TEXTS:
        shutil.copyfile(text_files / name, out / name)
    write_manifest(out, MODEL_ID, source)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
