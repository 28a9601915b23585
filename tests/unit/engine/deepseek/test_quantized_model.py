"""Whole models from 8 and 4 bit checkpoints; a rank of a group reads its own experts only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.errors import EngineError, UnsupportedModel
from rorqual_engine.expert_ranks import open_served_model
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.checkpoint import INDEX_NAME
from rorqual_engine.models.deepseek.formats import QuantizedLinear
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.options import LoadOptions
from rorqual_engine.parallel import ExpertGroup
from rorqual_engine.parallel.exchange import ExpertExchange
from rorqual_engine.prepare.random_v41 import random_tensors
from safetensors.torch import save_file

from tests.support.quantized_checkpoints import quantize, widen
from tests.support.tiny_llama import save_tiny_llama

TOKENS = np.random.default_rng(6).integers(2, 500, 70).tolist()
CHANGES = {
    "vocab_size": 512,
    "num_hidden_layers": 3,
    "compress_ratios": [0, 2, 1],
    "kv_source_layers": [1, 2],
    "index_source_layers": [1, 2],
    "candidate_source_layer": None,
    "late_start_layer": 2,
    "image_token_id": None,
    "vision_config": None,
    "dspark_config": None,
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model three times: in few bits, widened, and in few bits over two files."""
    from rorqual_engine.prepare.random_v41 import TINY_V41

    fields = TINY_V41 | CHANGES
    few = quantize(random_tensors(fields, 0))
    found = {}
    for name, tensors in (("few", few), ("wide", widen(few)), ("cut", few)):
        found[name] = tmp_path_factory.mktemp(name)
        (found[name] / "config.json").write_text(json.dumps(fields))
        if name != "cut":
            save_file(tensors, found[name] / "model.safetensors")
    _save_cut(few, found["cut"])
    return found


def _save_cut(tensors: dict[str, torch.Tensor], directory: Path) -> None:
    """Experts 8 to 15 lie in a file of their own."""
    is_high = {
        name: ".experts." in name and int(name.split(".experts.")[1].split(".")[0]) >= 8
        for name in tensors
    }
    files = {False: "low.safetensors", True: "high.safetensors"}
    for which, file in files.items():
        part = {name: tensor for name, tensor in tensors.items() if is_high[name] == which}
        save_file(part, directory / file)
    index = {name: files[which] for name, which in is_high.items()}
    (directory / INDEX_NAME).write_text(json.dumps({"weight_map": index}))


def _logits(directory: Path, dtype: str, options: LoadOptions = LoadOptions()) -> torch.Tensor:  # noqa: B008
    model = load_model(directory, dtype=dtype, options=options)
    cache = model.new_cache(1)
    with cache.allocate(1) as lease:
        return model.forward([SequenceChunk(TOKENS, 0, lease.pages, True, lease.window)], cache)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_few_bits_give_the_logits_of_their_values(stored: dict[str, Path], dtype: str) -> None:
    expected = _logits(stored["wide"], dtype)
    assert torch.equal(_logits(stored["few"], dtype), expected)
    assert torch.equal(_logits(stored["cut"], dtype), expected)


def test_few_bits_kept_in_memory_give_the_same_logits(stored: dict[str, Path]) -> None:
    kept = LoadOptions(keeps_quantized=True)
    assert torch.equal(_logits(stored["few"], "float32", kept), _logits(stored["wide"], "float32"))
    close = _logits(stored["few"], "bfloat16", kept).log_softmax(-1)
    expected = _logits(stored["wide"], "bfloat16").log_softmax(-1)
    assert (expected.exp() * (expected - close)).sum() < 1e-3


@dataclass(frozen=True)
class _Settings:
    """As services have them."""

    model_dir: Path
    keeps_quantized: bool
    drafts: bool = False
    device: str = "cpu"
    dtype: str = "float32"
    kernels: str = "auto"
    expert_ranks: int = 1
    expert_placement: Path | None = None
    redundant_experts: int = 0
    expert_nodes: int = 1
    expert_interval_s: float = 60.0
    expert_moves: int = 8
    expert_split: str = "counts"


@pytest.mark.parametrize("keeps", [False, True])
def test_a_service_may_keep_few_bits(stored: dict[str, Path], keeps: bool) -> None:
    with open_served_model(_Settings(stored["few"], keeps), on_lost=print) as model:
        assert isinstance(model, DeepseekModel)
        kept = [isinstance(layer._attention._out_b, QuantizedLinear) for layer in model._layers]
    assert all(kept) if keeps else not any(kept)


def test_an_expert_in_few_bits_moves_as_it_is(stored: dict[str, Path]) -> None:
    kept = LoadOptions(keeps_quantized=True)
    model = load_model(stored["few"], dtype="float32", options=kept)
    assert isinstance(model, DeepseekModel)
    experts = model._layers[0].moe._experts
    x = torch.randn(3, model.config.hidden)
    second = experts.each(x, torch.full((3,), 1))
    assert not torch.equal(experts.each(x, torch.zeros(3, dtype=torch.int64)), second)
    assert {t.dtype.itemsize for t in experts.stored(1)} == {1}
    experts.prepare(0, experts.stored(1))()
    assert torch.equal(experts.each(x, torch.zeros(3, dtype=torch.int64)), second)


class _FirstOfTwo(ExpertExchange):
    rank, size = 0, 2
    share = move = dispatch = combine = close = None  # type: ignore[assignment]


def test_a_rank_does_without_the_files_of_other_experts(stored: dict[str, Path]) -> None:
    (stored["cut"] / "high.safetensors").rename(stored["cut"] / "elsewhere")
    try:
        model = load_model(stored["cut"], options=LoadOptions(group=ExpertGroup(_FirstOfTwo())))
        assert isinstance(model, DeepseekModel)
        with pytest.raises(EngineError, match=r"high\.safetensors is missing"):
            load_model(stored["cut"])
    finally:
        (stored["cut"] / "elsewhere").rename(stored["cut"] / "high.safetensors")


def test_a_model_without_experts_has_none_to_share(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    with pytest.raises(UnsupportedModel, match="no experts to share"):
        load_model(tmp_path, options=LoadOptions(group=ExpertGroup(_FirstOfTwo())))
