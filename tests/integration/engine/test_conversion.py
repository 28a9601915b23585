"""The prepared weights are what transformers reads from the same GGUF file."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


def test_every_tensor_equals_transformers_reading(model_dir: Path, gguf: Path) -> None:
    """Row order of q and k included."""
    with torch.device("meta"):
        empty = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_pretrained(model_dir))
    read = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=empty)["tensors"]
    ours = load_file(model_dir / "model.safetensors")
    assert ours.keys() == read.keys()
    for name, weight in ours.items():
        assert torch.equal(weight, torch.as_tensor(read[name]).to(torch.bfloat16)), name
