"""V4's draft layer: logits of the independent reference, the same whatever the chunks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import PagedKvCache, PageLease
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.options import LoadOptions
from safetensors.torch import load_file, save_file

from tests.support.deepseek_reference import MtpReference, TextReference
from tests.support.engine_runs import cut
from tests.support.tiny_deepseek import TINY_V4, save_tiny_v4

TOKENS = np.random.default_rng(2).integers(2, 320, 91).tolist()
_LAST = "model.layers.5."


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A V4 model whose draft layer is made of the last layer's shapes (a CSA layer without entries
    is a window layer)."""
    directory = tmp_path_factory.mktemp("mtp")
    save_tiny_v4(directory, num_nextn_predict_layers=1)
    tensors = load_file(directory / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    hidden = TINY_V4["hidden_size"]
    shapes = {
        "mtp.0." + name.removeprefix(_LAST): tensor.shape
        for name, tensor in tensors.items()
        if name.startswith(_LAST) and "compressor" not in name and "indexer" not in name
    }
    shapes |= {f"mtp.0.{name}.weight": (hidden, hidden) for name in ("e_proj", "h_proj")}
    shapes |= {f"mtp.0.{name}.weight": (hidden,) for name in ("enorm", "hnorm", "norm")}
    shapes |= {"mtp.0.hc_head_fn": (4, 4 * hidden), "mtp.0.hc_head_base": (4,)}
    shapes["mtp.0.hc_head_scale"] = (1,)
    drafts = {name: _random(name, shape, generator) for name, shape in shapes.items()}
    save_file(tensors | drafts, directory / "model.safetensors")
    return directory


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(shape, generator=generator)
    if "norm" in name or "scale" in name:
        return 1 + 0.3 * values
    return values * (shape[-1] ** -0.5 if len(shape) > 1 else 0.5)


def _loaded(directory: Path, dtype: str) -> DeepseekModel:
    model = load_model(directory, dtype=dtype, options=LoadOptions(drafts=True))
    assert isinstance(model, DeepseekModel)
    return model


def _drafted(model: DeepseekModel, sizes: list[int]) -> torch.Tensor:
    """Draft logits of every row but the last, [90, V]."""
    assert model.mtp is not None
    cache = model.new_cache(2)
    windows = model.mtp.new_windows(cache.num_windows)
    windows.window[model.config.num_layers].fill_(float("nan"))
    found = []
    with cache.allocate(1) as lease:
        for start, end in cut(len(TOKENS) - 1, sizes):
            streams, chunk = _run(model, cache, lease, start, end)
            _, rows = model._lay_out([chunk], cache)
            next_ids = torch.tensor(TOKENS[start + 1 : end + 1])
            found.append(model.mtp(streams, next_ids, rows, windows))
    return torch.cat(found)


def _run(
    model: DeepseekModel, cache: PagedKvCache, lease: PageLease, start: int, end: int
) -> tuple[torch.Tensor, SequenceChunk]:
    """Streams behind the last layer, of every row."""
    seen: dict[int, torch.Tensor] = {}
    model.on_layer = lambda layer, streams: seen.update({layer: streams.values.clone()})
    chunk = SequenceChunk(TOKENS[start:end], start, lease.pages, True, lease.window)
    try:
        model.forward([chunk], cache)
    finally:
        model.on_layer = None
    return seen[model.config.num_layers - 1], chunk


@pytest.mark.parametrize("sizes", [[90], [7, 1, 30]])
def test_logits_are_the_references(model_dir: Path, sizes: list[int]) -> None:
    config = json.loads((model_dir / "config.json").read_text())
    target = TextReference(config, load_file(model_dir / "model.safetensors"))
    expected = MtpReference(target)(target(TOKENS[:-1]), TOKENS[1:])
    found = _drafted(_loaded(model_dir, "float32"), sizes)
    torch.testing.assert_close(found, expected.float(), rtol=0, atol=1e-4)


def test_chunks_change_no_bit(model_dir: Path) -> None:
    model = _loaded(model_dir, "bfloat16")
    whole = _drafted(model, [90])
    for sizes in ([1], [40, 3]):
        assert torch.equal(_drafted(model, sizes), whole)


def test_a_checkpoint_without_it_has_no_draft(tmp_path: Path) -> None:
    save_tiny_v4(tmp_path, num_nextn_predict_layers=1)
    assert _loaded(tmp_path, "bfloat16").mtp is None
