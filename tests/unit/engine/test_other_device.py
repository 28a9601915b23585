"""Models on a device that is not the host: nothing mixes the two, and a step is not waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rorqual_engine.batch import ImageRows, SequenceChunk
from rorqual_engine.kernels.registry import KernelChoice
from rorqual_engine.logit_rules import LogitEditor, LogitRules
from rorqual_engine.models import load_model
from rorqual_engine.models.base import CausalModel
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.deepseek.vision import VisionTower
from rorqual_engine.models.deepseek.vocabulary import STORED
from rorqual_engine.models.device_kernels import DeviceKernels
from rorqual_engine.models.drafts import Anchor
from rorqual_engine.models.options import LoadOptions
from rorqual_engine.models.registry import read_config
from rorqual_engine.prepare.random_v41 import write_random_v41
from rorqual_engine.sampling import SamplingState, sample
from safetensors.torch import save_file

from tests.support.pretend_device import DEVICE, Pretending, pretending
from tests.support.tiny_deepseek import save_tiny_v4
from tests.support.tiny_llama import save_tiny_llama
from tests.support.tiny_v41 import CANDIDATES, DSPARK, ENGRAM, FOUR_LAYERS

V41 = FOUR_LAYERS | CANDIDATES | DSPARK | {"index_topk": 8}
IMAGE = V41["image_token_id"]


def _write_engram(directory: Path) -> None:
    write_random_v41(directory, changes=V41 | ENGRAM)
    classes = torch.arange(V41["vocab_size"], dtype=torch.int32) % 90
    save_file({STORED: classes}, directory / "map.safetensors")


VARIANTS: dict[str, Callable[[Path], object]] = {
    "llama": save_tiny_llama,
    "v4": save_tiny_v4,
    "v4.1": lambda directory: write_random_v41(directory, changes=V41),
    "v4.1-quantised": lambda directory: write_random_v41(
        directory, changes=V41 | {"kv_quantized": True}
    ),
    "v4.1-engram": _write_engram,
}
NUM_TOKENS = 150
TOKENS = np.random.default_rng(3).integers(2, 240, 2 * NUM_TOKENS).tolist()
STATES = (SamplingState(num_logprobs=2), SamplingState(1.0, 0.9, 20, 0.01, seed=3, position=7))


@pytest.fixture
def device() -> Iterator[Pretending]:
    with pretending() as mode:
        yield mode


@pytest.fixture
def outside_kernels(device: Pretending, monkeypatch: pytest.MonkeyPatch) -> Pretending:
    """Waits inside the twins do not count: other kernels stand for them on a real device."""
    find = DeviceKernels.__call__

    def found(kernels: DeviceKernels, op: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            before = device.waits.copy()
            result = find(kernels, op)(*args, **kwargs)
            device.waits = before
            return result

        return run

    monkeypatch.setattr(DeviceKernels, "__call__", found)
    return device


def _chunks(model: CausalModel, cache: Any) -> Iterator[list[SequenceChunk]]:
    """Two sequences: cut prompts, one of them with an image, then steps of one row each."""
    leases = [cache.allocate(2), cache.allocate(2)]
    tokens = [TOKENS[:NUM_TOKENS], TOKENS[NUM_TOKENS:]]
    embeddings = None
    if isinstance(model, DeepseekModel) and model.config.image_token_id is not None:
        tokens[1][3:5] = [IMAGE] * 2
        rows = torch.linspace(-1, 1, 2 * model.config.hidden).view(2, -1)
        embeddings = ImageRows(np.array([3, 4]), rows)
    for start, end in ((0, 100), (100, NUM_TOKENS - 1), (NUM_TOKENS - 1, NUM_TOKENS)):
        is_prompt = end < NUM_TOKENS
        yield [
            SequenceChunk(
                ids[start:end], start, lease.pages, end > 100, lease.window, defers_late=is_prompt,
                embeddings=embeddings if number and not start else None,
            )
            for number, (ids, lease) in enumerate(zip(tokens, leases, strict=True))
        ]  # fmt: skip


def _run(model: CausalModel) -> list[torch.Tensor]:
    cache = model.new_cache(6)
    found = [model.forward(chunks, cache).cpu() for chunks in _chunks(model, cache)]
    if cache.num_windows:
        snapshot = model.save_window(cache, 0, NUM_TOKENS)
        model.load_window(cache, 2, NUM_TOKENS, snapshot)
        assert torch.equal(model.save_window(cache, 2, NUM_TOKENS), snapshot)
        assert snapshot.device.type == "cpu"
    if isinstance(model, DeepseekModel) and model.dspark is not None:
        drafts = model.draft([Anchor(5, NUM_TOKENS, slot) for slot in (0, 1)], cache)
        found += [drafts.logits.cpu(), drafts.confidences.cpu()]
    return found


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_models_say_what_they_say_on_the_host(
    name: str, tmp_path: Path, device: Pretending
) -> None:
    VARIANTS[name](tmp_path)
    there = load_model(tmp_path, device=str(DEVICE), dtype="float32", options=_options(drafts=True))
    assert there.device == DEVICE
    expected = _run(load_model(tmp_path, dtype="float32", options=LoadOptions(drafts=True)))
    for found, logits in zip(_run(there), expected, strict=True):
        torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-4)


def _options(*, drafts: bool) -> LoadOptions:
    return LoadOptions(drafts=drafts, kernels=KernelChoice(everywhere="twin"))


@pytest.mark.parametrize("name", sorted(VARIANTS.keys() - {"v4.1-engram"}))
def test_a_step_waits_for_nothing(name: str, tmp_path: Path, outside_kernels: Pretending) -> None:
    """But with Engram, whose table lies on the host."""
    VARIANTS[name](tmp_path)
    options = _options(drafts=False)
    model = load_model(tmp_path, device=str(DEVICE), dtype="float32", options=options)
    cache = model.new_cache(6)
    for chunks in _chunks(model, cache):
        outside_kernels.waits.clear()
        model.forward(chunks, cache)
        assert not +outside_kernels.waits


def test_tokens_are_chosen_where_the_logits_are(device: Pretending) -> None:
    logits = 4 * torch.randn((2, 70), generator=torch.Generator().manual_seed(0))
    bitmask = torch.full((2, 3), -1, dtype=torch.int32)
    bitmask[0, 0] = 8
    editors = [LogitEditor(LogitRules(logit_bias=((5, 50.0),)), [], []), None]
    for mask, edits in ((None, ()), (bitmask, ()), (bitmask, editors)):
        expected = sample(logits, STATES, mask, edits)
        found = sample(logits.to(DEVICE), STATES, mask, edits)
        assert found.ids.tolist() == expected.ids.tolist()
        assert found.logprobs == expected.logprobs


def test_images_are_encoded_there(tmp_path: Path, device: Pretending) -> None:
    write_random_v41(tmp_path)
    images = [np.full((28, 42, 3), 90, np.uint8), np.full((14, 14, 3), 7, np.uint8)]
    towers = [
        VisionTower.load(tmp_path, read_config(tmp_path), place, torch.float32)
        for place in (DEVICE, torch.device("cpu"))
    ]
    there, here = (tower.encode(images) for tower in towers)
    for found, expected in zip(there, here, strict=True):
        assert found.device == DEVICE
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
