"""The reference's draft modules: what they read, what they do not, and equal simpler models."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from rorqual_engine.prepare.random_v41 import TINY_V41, random_tensors
from safetensors.torch import load_file

from tests.support.deepseek_reference import DraftReference, MtpReference, TextReference
from tests.support.deepseek_reference.names import published
from tests.support.deepseek_reference.rotation import rms
from tests.support.tiny_deepseek import save_tiny_v4
from tests.unit.engine.deepseek.reference_runs import SMALL, Prompt

V4 = tuple[dict[str, Any], dict[str, torch.Tensor]]
W = 16
IDS = Prompt.random(120).ids


@pytest.fixture(scope="module")
def target() -> TextReference:
    fields = {
        **SMALL,
        "dspark_config": {**TINY_V41["dspark_config"], "taps": [4, 5], "noise_id": 301},
    }
    return TextReference(fields, random_tensors(fields, 0))


def test_a_draft_reads_a_window_of_context_and_its_whole_block(target: TextReference) -> None:
    draft = DraftReference(target)
    context = draft.context(target(IDS))
    block = draft.block(context, 9, 60)
    assert block.logits.shape == (5, 320)
    for changed, is_same in ((60 - W - 1, True), (60 - W, False), (59, False), (60, True)):
        other = context.clone()
        other[changed] += 1
        found = draft.block(other, 9, 60)
        assert torch.equal(found.logits, block.logits) == is_same, changed
    assert not torch.equal(draft.block(context, 9, 60, valid_from=50).logits, block.logits)
    assert draft.block(context, 9, 60, valid_from=60).logits.isfinite().all()


def test_a_draft_guesses_from_left_to_right(target: TextReference) -> None:
    draft = DraftReference(target)
    block = draft.block(draft.context(target(IDS)), 9, 60)
    first = draft.corrected(block, 0, 9)
    tables = target.tensors.at("mtp.1.markov_head.")
    expected = block.logits[0] + tables["embed.weight"][9] @ tables["head.weight"].T
    torch.testing.assert_close(first, expected)
    guesses = draft.greedy(block, 9)
    assert guesses[0] == int(first.argmax()) and len(guesses) == 5
    assert guesses[1] == int(draft.corrected(block, 1, guesses[0]).argmax())
    confidence = [float(draft.confidence(block, k, 9)) for k in range(5)]
    assert all(0 < c < 1 for c in confidence)
    assert abs(float(draft.confidence(block, 0, 9, 1e6)) - 0.5) < 1e-3


@pytest.fixture(scope="module")
def v4(tmp_path_factory: pytest.TempPathFactory) -> V4:
    """Windows only; layer 1 stands at mtp.0 too, behind random projections."""
    directory = tmp_path_factory.mktemp("v4")
    save_tiny_v4(directory, compress_ratios=[0] * 6, num_hash_layers=0)
    config = json.loads((directory / "config.json").read_text())
    tensors = published(load_file(directory / "model.safetensors"))
    generator = torch.Generator().manual_seed(0)
    for name in list(tensors):
        if name.startswith("layers.1."):
            tensors[name.replace("layers.1.", "mtp.0.")] = tensors[name]
        if name.startswith(("hc_head_", "norm.")):
            tensors[f"mtp.0.{name}"] = tensors[name]
    for name in ("e", "h"):
        tensors[f"mtp.0.{name}norm.weight"] = torch.rand(64, generator=generator) + 0.5
        tensors[f"mtp.0.{name}_proj.weight"] = torch.randn(64, 64, generator=generator) / 8
    return config, tensors


def test_mtp_reads_streams_and_next_tokens_and_nothing_behind_them(v4: V4) -> None:
    target = TextReference(*v4)
    mtp, ids = MtpReference(target), IDS[:41]
    logits = mtp(target(ids[:40]), ids[1:])
    next_changed = mtp(target(ids[:40]), [*ids[1:30], 6, *ids[31:]])
    difference = (next_changed - logits).abs()
    assert difference[:29].max() < 1e-12 < difference[29].max()
    streams_changed = mtp(target([*ids[:30], 7, *ids[31:40]]), ids[1:])
    difference = (streams_changed - logits).abs()
    assert difference[:30].max() < 1e-12 < difference[30].max()


def test_mtp_that_hears_no_streams_is_a_model_of_one_layer(v4: V4) -> None:
    config, tensors = v4
    silent = {"mtp.0.h_proj.weight": torch.zeros(64, 64), "mtp.0.e_proj.weight": torch.eye(64)}
    target = TextReference(config, {**tensors, **silent})
    found = MtpReference(target)(target(IDS[:40]), IDS[1:41])
    one_layer = {**config, "num_hidden_layers": 1}
    table = rms(tensors["embed.weight"], 1e-6, tensors["mtp.0.enorm.weight"])
    moved = {name.replace("mtp.0.", "layers.0."): t for name, t in tensors.items() if "mtp" in name}
    alone = TextReference(one_layer, {**tensors, **moved, "embed.weight": table})
    torch.testing.assert_close(found, alone(IDS[1:41]).logits, rtol=0, atol=1e-5)
