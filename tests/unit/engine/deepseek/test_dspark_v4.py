"""The draft module beside a V4 model: taps behind layers, weights of its own to read the streams,
open compressions that are taken back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rorqual_engine.models.deepseek.model import DeepseekModel
from safetensors.torch import load_file, save_file

from tests.support.deepseek_reference import Rule, TextReference
from tests.support.tiny_deepseek import TINY_V4, save_tiny_v4
from tests.unit.engine.deepseek.draft_runs import (
    Drafting,
    assert_close,
    dirty_cache,
    expected_drafts,
    load_with_drafts,
    sequence,
)
from tests.unit.engine.deepseek.reference_runs import Prompt

IDS = Prompt.random(150).ids
RANK = 24
DRAFT: dict[str, Any] = {"block": 4, "taps": [3, 4, 5], "rank": RANK, "noise_id": 310}
_LAST = "model.layers.5."


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every stage has the shapes of the last layer (a CSA layer without entries is a window's)."""
    directory = tmp_path_factory.mktemp("dspark-v4")
    save_tiny_v4(directory)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dspark_config": DRAFT}))
    tensors = load_file(directory / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    drafts = {
        name: _random(name, shape, generator) for name, shape in _draft_shapes(tensors).items()
    }
    save_file(tensors | drafts, directory / "model.safetensors")
    return directory


def _draft_shapes(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    hidden, vocab = TINY_V4["hidden_size"], TINY_V4["vocab_size"]
    layer = {
        name.removeprefix(_LAST): tuple(tensor.shape)
        for name, tensor in tensors.items()
        if name.startswith(_LAST) and "compressor" not in name and "indexer" not in name
    }
    shapes = {f"mtp.{s}.{name}": shape for s in range(3) for name, shape in layer.items()}
    shapes["mtp.0.main_proj.weight"] = (hidden, 3 * hidden)
    shapes |= {"mtp.0.main_norm.weight": (hidden,), "mtp.2.norm.weight": (hidden,)}
    shapes |= {"mtp.2.hc_head_fn": (4, 4 * hidden), "mtp.2.hc_head_base": (4,)}
    shapes |= {f"mtp.2.markov_head.{name}.weight": (vocab, RANK) for name in ("embed", "head")}
    shapes["mtp.2.confidence_head.proj.weight"] = (1, hidden + RANK)
    return shapes | {"mtp.2.hc_head_scale": (1,)}


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(shape, generator=generator)
    if "norm" in name or "scale" in name:
        return 1 + 0.3 * values
    return values * (shape[-1] ** -0.5 if len(shape) > 1 else 0.5)


@pytest.fixture(scope="module")
def model(model_dir: Path) -> DeepseekModel:
    return load_with_drafts(model_dir, "bfloat16")


def _feed(running: Drafting, ids: list[int], sizes: tuple[int, ...]) -> None:
    turn = 0
    while running.length < len(ids):
        end = min(len(ids), running.length + sizes[turn % len(sizes)])
        chunk = running.chunk(ids[running.length : end])
        running.model.forward([chunk], running.cache)
        running.length, turn = end, turn + 1


@pytest.mark.parametrize("sizes", [(90,), (7, 1, 30)])
def test_blocks_are_the_references(model_dir: Path, sizes: tuple[int, ...]) -> None:
    config = json.loads((model_dir / "config.json").read_text())
    target = TextReference(config, load_file(model_dir / "model.safetensors"))
    with sequence(load_with_drafts(model_dir, "float32")) as running:
        _feed(running, IDS[:90], sizes)
        assert_close(running.draft(9), expected_drafts(target, IDS[:90], 9, Rule()))


def test_chunks_change_no_bit_of_a_block(model: DeepseekModel) -> None:
    cache = dirty_cache(model)
    found = []
    for sizes in ((140,), (1,), (19, 50)):
        with sequence(model, cache) as running:
            _feed(running, IDS[:140], sizes)
            found.append(running.draft(9))
    for other in found[1:]:
        assert torch.equal(other.logits, found[0].logits)
        assert torch.equal(other.confidences, found[0].confidences)


def test_rows_taken_back_leave_no_trace(model: DeepseekModel) -> None:
    found = []
    for rejects in (False, True):
        with sequence(model) as running:
            _feed(running, IDS[:117], (117,))
            for at in (117, 119, 120, 123, 125, 126, 127, 131):
                kept = IDS[running.length : at + 1]
                if rejects:
                    running.verify([*kept, *IDS[: 5 - len(kept)]])
                    running.length += len(kept)
                else:
                    for token in kept:
                        running.step(token)
            parts = [running.saved(), running.draft(9).logits]
            found.append([*parts, *(running.step(token) for token in IDS[40:50])])
    for plain, speculative in zip(*found, strict=True):
        assert torch.equal(plain, speculative)
