"""Which plug-in runs which model directory."""

from __future__ import annotations

import importlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch

from rorqual_engine.errors import CorruptModel, ModelNotFound, UnsupportedModel
from rorqual_engine.manifest import content_fingerprint, file_sha256, read_manifest, verify
from rorqual_engine.models.base import CausalModel
from rorqual_engine.models.deepseek.config import V4_ARCHITECTURE, V41_ARCHITECTURE
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.llama import LlamaModel
from rorqual_engine.models.options import LoadOptions
from rorqual_engine.models.weights import Weights

_NO_OPTIONS = LoadOptions()
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class Loader(Protocol):
    """Builds a model from its parsed config and its weights."""

    def __call__(
        self,
        config: dict[str, Any],
        weights: Weights,
        *,
        content_id: str,
        device: torch.device,
        dtype: torch.dtype,
        options: LoadOptions,
    ) -> CausalModel: ...


_LOADERS: dict[str, Loader] = {
    "LlamaForCausalLM": LlamaModel,
    "Qwen2ForCausalLM": LlamaModel,
    V4_ARCHITECTURE: DeepseekModel,
    V41_ARCHITECTURE: DeepseekModel,
}


def load_model(
    model_dir: Path,
    *,
    device: str = "cpu",
    dtype: str = "bfloat16",
    options: LoadOptions = _NO_OPTIONS,
) -> CausalModel:
    """Loads a Hugging Face directory; a manifest, when there is one, is verified first.

    device: cpu, cuda[:n] or npu[:n]; dtype: bfloat16 or float32.
    Raises: ModelNotFound, CorruptModel, UnsupportedModel.
    """
    model_dir = Path(model_dir)
    config = read_config(model_dir)
    target = find_device(device)
    if dtype not in DTYPES:
        raise UnsupportedModel(f"dtype {dtype!r}; known are {', '.join(DTYPES)}")
    loader = _find_loader(config, model_dir)
    content_id = _content_id(model_dir)
    weights = Weights(model_dir, target, DTYPES[dtype])
    return loader(
        config,
        weights,
        content_id=content_id,
        device=target,
        dtype=DTYPES[dtype],
        options=options,
    )


def find_device(device: str) -> torch.device:
    """The device of this name, which is here. Raises: UnsupportedModel."""
    if device.partition(":")[0] == "npu" and find_spec("torch_npu") is not None:
        importlib.import_module("torch_npu")  # makes the kind of device known to torch
    try:
        target = torch.device(device)
    except RuntimeError:
        raise UnsupportedModel(
            f"device {device!r} is not known; use cpu, cuda, or npu with torch_npu installed"
        ) from None
    if target.type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedModel(f"device {device!r} asked for, but this machine shows no CUDA GPU")
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise UnsupportedModel(
            f"device {device!r} asked for, but this machine shows {torch.cuda.device_count()} GPUs"
        )
    return target


def read_config(model_dir: Path) -> dict[str, Any]:
    """config.json; eos ids of generation_config.json, where present, take precedence.

    Raises: ModelNotFound, CorruptModel.
    """
    config = _read_json(model_dir / "config.json")
    if (model_dir / "generation_config.json").is_file():
        generation = _read_json(model_dir / "generation_config.json")
        if generation.get("eos_token_id") is not None:
            config["eos_token_id"] = generation["eos_token_id"]
    return config


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelNotFound(path.parent, f"{path.name} is missing")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as err:
        raise CorruptModel(path, f"not JSON ({err})") from err
    if not isinstance(content, dict):
        raise CorruptModel(path, "not a JSON object")
    return content


def _find_loader(config: dict[str, Any], model_dir: Path) -> Loader:
    architectures = config.get("architectures") or []
    for architecture in architectures:
        if architecture in _LOADERS:
            return _LOADERS[architecture]
    raise UnsupportedModel(
        f"{model_dir} has architectures {architectures}; known are {', '.join(_LOADERS)}"
    )


def _content_id(model_dir: Path) -> str:
    """Identity of the weights and the config, from the manifest or from the files themselves."""
    manifest = read_manifest(model_dir)
    if manifest is not None:
        verify(model_dir, manifest)
        hashes = {name: entry.sha256 for name, entry in manifest.files.items()}
    else:
        hashes = {path.name: file_sha256(path) for path in model_dir.glob("*.safetensors")}
        hashes["config.json"] = file_sha256(model_dir / "config.json")
    kept = {n: h for n, h in hashes.items() if n.endswith(".safetensors") or n == "config.json"}
    return content_fingerprint(kept)
