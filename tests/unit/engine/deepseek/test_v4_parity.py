"""Random V4 models saved by transformers give transformers' results in fp32, however they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.errors import BadChunk, CorruptModel
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.prepare.random_v41 import text_shapes
from safetensors.torch import save_file

from tests.support.engine_runs import cut
from tests.support.tiny_deepseek import save_tiny_v4

TOLERANCE = 1e-4
TOKENS = np.random.default_rng(1).integers(2, 320, 150).tolist()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> transformers.DeepseekV4ForCausalLM:
    return save_tiny_v4(tmp_path_factory.mktemp("v4") / "model")


@pytest.fixture(scope="module")
def model(reference: transformers.DeepseekV4ForCausalLM) -> DeepseekModel:
    loaded = load_model(Path(reference.saved_in), dtype="float32")
    assert isinstance(loaded, DeepseekModel)
    return loaded


@pytest.fixture(scope="module")
def expected(reference: transformers.DeepseekV4ForCausalLM) -> torch.Tensor:
    """Logits of every position, [150, 320]."""
    return _logits(reference, TOKENS)


def _logits(reference: transformers.DeepseekV4ForCausalLM, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return reference(torch.tensor([tokens])).logits[0]


def _chunked(model: DeepseekModel, tokens: list[int], sizes: list[int]) -> dict[int, torch.Tensor]:
    """Logits at the last position of every chunk."""
    cache = model.new_cache(4)
    found = {}
    with cache.allocate(model.kv_layout.num_pages(len(tokens))) as lease:
        for start, end in cut(len(tokens), sizes):
            chunk = SequenceChunk(tokens[start:end], start, lease.pages, True, lease.window)
            found[end - 1] = model.forward([chunk], cache)[0]
    return found


@pytest.mark.parametrize("sizes", [[150], [1], [7, 1, 30, 5, 2, 64], [16], [33, 128]])
def test_any_chunking_gives_transformers_logits(
    model: DeepseekModel, expected: torch.Tensor, sizes: list[int]
) -> None:
    for position, logits in _chunked(model, TOKENS, sizes).items():
        torch.testing.assert_close(logits, expected[position], rtol=0, atol=TOLERANCE)


def test_a_batch_of_prefills_and_decodes_gives_transformers_logits(
    model: DeepseekModel, reference: transformers.DeepseekV4ForCausalLM
) -> None:
    prompts = [TOKENS[:90], TOKENS[20:51], TOKENS[70:], TOKENS[5:6]]
    done = [0] * len(prompts)
    cache = model.new_cache(8)
    leases = [cache.allocate(1) for _ in prompts]
    turns = [[40, 31, 1, 0], [1, 0, 60, 1], [49, 0, 1, 0], [0, 0, 18, 0]]
    for turn in turns:
        running = [c for c, count in enumerate(turn) if count]
        chunks = [
            SequenceChunk(
                prompts[c][done[c] : done[c] + turn[c]],
                done[c],
                leases[c].pages,
                True,
                leases[c].window,
            )
            for c in running
        ]
        logits = model.forward(chunks, cache)
        for row, c in enumerate(running):
            done[c] += turn[c]
            expected = _logits(reference, prompts[c])[done[c] - 1]
            torch.testing.assert_close(logits[row], expected, rtol=0, atol=TOLERANCE)


def test_streams_equal_transformers_after_every_layer(
    model: DeepseekModel, reference: transformers.DeepseekV4ForCausalLM
) -> None:
    expected: list[torch.Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda layer, given, output: expected.append(output[0]))
        for layer in reference.model.layers
    ]
    _logits(reference, TOKENS)
    for hook in hooks:
        hook.remove()
    found: list[torch.Tensor] = []
    model.on_layer = lambda layer, streams: found.append(streams.values.clone())
    try:
        _chunked(model, TOKENS, [150])
    finally:
        model.on_layer = None
    assert len(found) == model.config.num_layers
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=TOLERANCE)


VARIANTS: dict[str, dict[str, Any]] = {
    "published windows and ratios": {"sliding_window": 128, "compress_rate_hca": 128},
    "window only": {"compress_ratios": [0] * 6},
    "tables nowhere": {"num_hash_layers": 0},
    "two streams": {"hc_mult": 2},
    "entries all chosen": {"index_topk": 512},
    "gates clamped": {"swiglu_limit": 0.5, "initializer_range": 0.3},
    "no scaling of positions": {"rope_parameters": {"rope_type": "default"}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant: str, tmp_path: Path) -> None:
    reference = save_tiny_v4(tmp_path, seed=3, **VARIANTS[variant])
    model = load_model(tmp_path, dtype="float32")
    assert isinstance(model, DeepseekModel)
    expected = _logits(reference, TOKENS)
    for position, logits in _chunked(model, TOKENS, [100, 1, 30]).items():
        torch.testing.assert_close(logits, expected[position], rtol=0, atol=TOLERANCE)


def test_names_of_transformers_modules_are_known_too(
    reference: transformers.DeepseekV4ForCausalLM, model: DeepseekModel, tmp_path: Path
) -> None:
    """The state dict as modules name it, experts stacked apart, loads like the checkpoint."""
    source = Path(reference.saved_in)
    tensors = {}
    for name, tensor in reference.state_dict().items():
        tensors.update(_by_expert(name, tensor))
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    renamed = load_model(tmp_path, dtype="float32")
    assert isinstance(renamed, DeepseekModel)
    (mine,) = _chunked(renamed, TOKENS[:40], [40]).values()
    (theirs,) = _chunked(model, TOKENS[:40], [40]).values()
    assert torch.equal(mine, theirs)


def test_a_config_of_other_weights_is_refused(
    reference: transformers.DeepseekV4ForCausalLM, tmp_path: Path
) -> None:
    source = Path(reference.saved_in)
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    config = (source / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"vocab_size": 320', '"vocab_size": 321'))
    with pytest.raises(CorruptModel, match=r"embed\.weight has shape \(320, 64\)"):
        load_model(tmp_path)


def test_chunks_need_window_slots(model: DeepseekModel) -> None:
    cache = model.new_cache(2)
    with cache.allocate(1) as lease, pytest.raises(BadChunk, match="window slot"):
        model.forward([SequenceChunk([1, 2], 0, lease.pages)], cache)


def _by_expert(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    if ".experts." not in name:
        return {name: tensor.contiguous()}
    prefix, kind = name.rsplit(".", 1)
    parts = {}
    for expert, matrix in enumerate(tensor):
        if kind == "down_proj":
            parts[f"{prefix}.{expert}.down_proj.weight"] = matrix.clone()
        else:
            gate, up = matrix.chunk(2)
            parts[f"{prefix}.{expert}.gate_proj.weight"] = gate.clone()
            parts[f"{prefix}.{expert}.up_proj.weight"] = up.clone()
    return parts


def test_what_the_engine_reads_goes_back_to_transformers(
    reference: transformers.DeepseekV4ForCausalLM, model: DeepseekModel, tmp_path: Path
) -> None:
    """Tensors written by their published names, as the engine knows them, load in transformers."""
    source = Path(reference.saved_in)
    weights = DeepseekWeights(source, torch.device("cpu"), torch.float32)
    names = [name for name, _ in text_shapes(model.config)]
    save_file({name: weights.raw(name).clone() for name in names}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    again = transformers.DeepseekV4ForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float32
    )
    assert torch.equal(_logits(again.eval(), TOKENS[:40]), _logits(reference, TOKENS[:40]))
