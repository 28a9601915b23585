"""Experts of a layer: kernels and plain torch agree, rows are their own, the router's rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.experts import CompiledExperts, PlainExperts, Routing
from rorqual_engine.models.deepseek.moe import MoeLayer
from rorqual_engine.models.deepseek.router import Router
from rorqual_engine.prepare.random_v41 import write_random_v41
from safetensors.torch import load_file, save_file

PREFIX = "layers.0.ffn"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experts")
    changes = {"num_hidden_layers": 1, "compress_ratios": [0], "kv_source_layers": []}
    changes |= {"index_source_layers": [], "candidate_source_layer": None}
    changes |= {"late_start_layer": None, "vision_config": None, "dspark_config": None}
    write_random_v41(path, changes=changes)
    return path


@pytest.fixture(scope="module")
def config(directory: Path) -> DeepseekConfig:
    return DeepseekConfig.from_hf(json.loads((directory / "config.json").read_text()))


def _weights(directory: Path, dtype: torch.dtype = torch.bfloat16) -> DeepseekWeights:
    return DeepseekWeights(directory, torch.device("cpu"), dtype)


def _routed(num_rows: int) -> tuple[torch.Tensor, Routing]:
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, 192, generator=generator).bfloat16()
    experts = torch.rand(num_rows, 16, generator=generator).argsort(-1)[:, :3]
    return x, Routing(experts, torch.rand(num_rows, 3, generator=generator))


@pytest.fixture(scope="module")
def compiled(directory: Path, config: DeepseekConfig) -> CompiledExperts:
    return CompiledExperts(_weights(directory), PREFIX, config, range(16))


@pytest.fixture(scope="module")
def plain(directory: Path, config: DeepseekConfig) -> PlainExperts:
    return PlainExperts(_weights(directory), PREFIX, config, range(16))


@pytest.mark.parametrize("num_rows", [1, 2, 7, 32, 150])
def test_kernels_compute_what_plain_torch_does(
    compiled: CompiledExperts, plain: PlainExperts, num_rows: int
) -> None:
    x, routing = _routed(num_rows)
    found, expected = compiled.mixed(x, routing).float(), plain.mixed(x, routing).float()
    torch.testing.assert_close(found, expected, rtol=2**-6, atol=2e-2)


@pytest.mark.parametrize("num_rows", [1, 32, 150])
@pytest.mark.parametrize("which", ["compiled", "plain"])
def test_mixing_is_every_experts_output_weighted_and_added_in_order(
    compiled: CompiledExperts, plain: PlainExperts, which: str, num_rows: int
) -> None:
    """What a group of ranks relies on, bit by bit; and rows are the same alone."""
    experts = compiled if which == "compiled" else plain
    x, routing = _routed(num_rows)
    total = torch.zeros(num_rows, 192)
    for k in range(3):
        each = experts.each(x, routing.experts[:, k]).float()
        total = total + each * routing.weights[:, k, None]
    expected = (total + experts.shared(x).float()).bfloat16()
    mixed = experts.mixed(x, routing)
    assert torch.equal(mixed, expected)
    for row in range(0, num_rows, 7):
        one = Routing(routing.experts[row : row + 1], routing.weights[row : row + 1])
        assert torch.equal(experts.mixed(x[row : row + 1], one), mixed[row : row + 1])


def test_a_few_experts_are_loaded_by_their_numbers(
    directory: Path, config: DeepseekConfig, compiled: CompiledExperts
) -> None:
    some = CompiledExperts(_weights(directory), PREFIX, config, (9, 2))
    x, _ = _routed(8)
    places = torch.tensor([0, 1, 0, 1, 1, 0, 0, 1])
    assert torch.equal(some.each(x, places), compiled.each(x, torch.tensor([9, 2])[places]))
    assert torch.equal(some.shared(x), compiled.shared(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_equal_scores_go_to_the_lowest_numbers(
    directory: Path, config: DeepseekConfig, tmp_path: Path, dtype: torch.dtype
) -> None:
    tensors = load_file(directory / "model.safetensors")
    for name in ("bias", "bias_vl"):
        tensors[f"{PREFIX}.gate.{name}"] = torch.zeros(16)
    tensors[f"{PREFIX}.gate.bias"][[3, 12]] = 1.0
    tensors[f"{PREFIX}.gate.weight"].zero_()
    save_file(tensors, tmp_path / "m.safetensors")
    router = Router(_weights(tmp_path, dtype), f"{PREFIX}.gate", config.layers[0], config)
    x = torch.randn(2, 192).to(dtype)
    found = router(x, torch.tensor([5, 4090]), torch.tensor([False, True]))
    assert found.experts.tolist() == [[3, 12, 0], [0, 1, 2]]
    torch.testing.assert_close(found.weights, torch.full((2, 3), 0.5))


def test_counts_are_of_this_layers_rows(directory: Path, config: DeepseekConfig) -> None:
    layer = MoeLayer.load(_weights(directory), PREFIX, config.layers[0], config)
    x, _ = _routed(40)
    for _ in range(2):
        layer(x, torch.zeros(40, dtype=torch.int64))
    experts = layer._router(x, torch.zeros(40, dtype=torch.int64), None).experts
    expected = 2 * torch.bincount(experts.flatten().long(), minlength=16)
    assert layer.load_so_far().counts.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", [CompiledExperts, PlainExperts])
def test_an_expert_comes_to_another_slot_as_it_was(
    directory: Path, config: DeepseekConfig, kind: type[CompiledExperts | PlainExperts]
) -> None:
    experts = kind(_weights(directory), PREFIX, config, range(3))
    x, _ = _routed(4)
    expected = [experts.each(x, torch.full((4,), slot)) for slot in (0, 1, 2)]
    put = experts.prepare(0, [tensor.clone() for tensor in experts.stored(2)])
    assert torch.equal(experts.each(x, torch.zeros(4, dtype=torch.int64)), expected[0])
    put()
    for slot, found in ((0, expected[2]), (1, expected[1]), (2, expected[2])):
        assert torch.equal(experts.each(x, torch.full((4,), slot)), found)
