"""Random models saved by transformers give transformers' logits in fp32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rorqual_engine.errors import CorruptModel, ModelNotFound, UnsupportedModel
from rorqual_engine.models import load_model

from tests.support.engine_runs import run_in_chunks
from tests.support.tiny_llama import save_tiny_llama

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped queries, tied head": {},
    "untied head": {"tie_word_embeddings": False},
    "one kv head each": {"num_key_value_heads": 6},
    "odd sizes": {"hidden_size": 54, "intermediate_size": 70, "head_dim": 10},
    "all biases": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {"family": "qwen2"},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "rope theta, eps": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "rms_norm_eps": 1e-3,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant: str, tmp_path: Path) -> None:
    reference = save_tiny_llama(tmp_path, **VARIANTS[variant])
    model = load_model(tmp_path, dtype="float32")
    tokens = np.random.default_rng(1).integers(0, 512, 200).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0, -1]
    cache = model.new_cache(2)
    with cache.allocate(2) as lease:
        found = run_in_chunks(model, cache, tokens, lease.pages, [90, 1, 40])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-4)


def test_declared_facts_come_from_the_directory(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, eos_token_id=[2, 5])
    model = load_model(tmp_path)
    assert model.vocab_size == 512
    assert model.max_context_tokens == 2048
    assert model.eos_token_ids == (2, 5)
    assert [layer.kind for layer in model.kv_layout.layers] == ["block"] * 3
    assert model.kv_layout.page_bytes == 3 * 2 * 2 * 32 * 2 * 128


def test_fingerprint_follows_weights_and_dtype(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path / "a")
    save_tiny_llama(tmp_path / "b")
    save_tiny_llama(tmp_path / "c", seed=1)
    a, b, c = (load_model(tmp_path / name).fingerprint for name in "abc")
    assert a == b
    assert len({a, c, load_model(tmp_path / "a", dtype="float32").fingerprint}) == 3


def test_unusable_directories_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json is missing"):
        load_model(tmp_path)
    save_tiny_llama(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace("LlamaForCausalLM", "OtherModel"))
    with pytest.raises(UnsupportedModel, match="OtherModel"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(config)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CorruptModel):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 64}, "embed_tokens"),
        ({"num_key_value_heads": 6}, "k_proj"),
        ({"intermediate_size": 96}, "gate_proj"),
        ({"num_hidden_layers": 4}, "model.layers.3"),
        ({"hidden_size": "wide"}, "config.json"),
    ],
)
def test_a_config_of_other_weights_is_refused(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    save_tiny_llama(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(CorruptModel, match=said):
        load_model(tmp_path)


def test_an_unknown_device_is_named(tiny_dir: Path) -> None:
    with pytest.raises(UnsupportedModel, match="abacus"):
        load_model(tiny_dir, device="abacus")


def test_missing_gpu_is_said_at_once(tiny_dir: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UnsupportedModel, match="cuda"):
        load_model(tiny_dir, device="cuda")
