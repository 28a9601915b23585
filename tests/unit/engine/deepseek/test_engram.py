"""Engram: hashes by their formulas, the same results whatever the chunks, images, replays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rorqual_engine.batch import ImageRows, SequenceChunk
from rorqual_engine.errors import BadChunk, CorruptModel
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.config import DeepseekConfig, EngramConfig
from rorqual_engine.models.deepseek.engram import hashings
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.deepseek.vocabulary import STORED, classes_of
from rorqual_engine.prepare.random_parts import engram_rows
from rorqual_engine.prepare.random_v41 import TINY_V41, write_random_v41
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models

from tests.support.deepseek_configs import V41_FLASH
from tests.support.deepseek_reference import TextReference
from tests.support.deepseek_reference.engram import EngramReference
from tests.support.deepseek_reference.shape import Shape
from tests.support.tiny_v41 import ENGRAM, FOUR_LAYERS

CHANGES = FOUR_LAYERS | ENGRAM
IMAGE = CHANGES["image_token_id"]
FIELDS = TINY_V41 | CHANGES
CLASSES = [token % 90 for token in range(256)]
TOKENS = np.random.default_rng(5).integers(0, 250, 150).tolist()
TOKENS[40:44] = [IMAGE] * 4


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("engram")
    write_random_v41(directory, changes=CHANGES)
    save_file({STORED: torch.tensor(CLASSES, dtype=torch.int32)}, directory / "map.safetensors")
    return directory


@pytest.fixture(scope="module")
def models_of(model_dir: Path) -> dict[str, DeepseekModel]:
    loaded = {}
    for dtype in ("bfloat16", "float32"):
        model = load_model(model_dir, dtype=dtype)
        assert isinstance(model, DeepseekModel)
        loaded[dtype] = model
    return loaded


def _chunks(tokens: list[int], sizes: list[int]) -> list[tuple[int, int]]:
    bounds, start, turn = [], 0, 0
    while start < len(tokens):
        end = min(len(tokens), start + sizes[turn % len(sizes)])
        bounds.append((start, end))
        start, turn = end, turn + 1
    return bounds


def _images(start: int, end: int, hidden: int) -> ImageRows | None:
    rows = [t for t in range(start, end) if TOKENS[t] == IMAGE]
    values = torch.stack([_image_row(t, hidden) for t in rows]) if rows else None
    return None if values is None else ImageRows(np.array(rows) - start, values)


def _image_row(position: int, hidden: int) -> torch.Tensor:
    return torch.randn(hidden, generator=torch.Generator().manual_seed(position))


def _run(model: DeepseekModel, sizes: list[int]) -> torch.Tensor:
    cache = model.new_cache(2)
    cache.windows.fill_(255)
    with cache.allocate(2) as lease:
        for start, end in _chunks(TOKENS, sizes):
            chunk = SequenceChunk(
                TOKENS[start:end], start, lease.pages, True, lease.window,
                embeddings=_images(start, end, model.config.hidden),
            )  # fmt: skip
            logits = model.forward([chunk], cache)
    return logits[0]


def test_rows_of_the_table_follow_the_formulas() -> None:
    shape = Shape(FIELDS)
    reference = EngramReference(shape, CLASSES)
    config = DeepseekConfig.from_hf(FIELDS)
    assert config.engram is not None
    ours = hashings(config.engram)
    for layer in (0, 1):
        assert ours[layer].num_rows == reference.num_rows(layer) == engram_rows(config)[layer]
        for t in (0, 1, 2, 3, 39, 41, 44, 45, 46, 47, 60):
            grams, is_cut = [], False
            for back in range(4):
                is_cut = is_cut or t < back or TOKENS[t - back] == IMAGE
                grams.append(CLASSES[3] if is_cut else CLASSES[TOKENS[t - back]])
            found = ours[layer].rows(torch.tensor([grams]))[0].tolist()
            assert found == reference.rows(layer, TOKENS, t)


def test_the_published_sizes_need_no_more_than_63_bits() -> None:
    config = DeepseekConfig.from_hf(V41_FLASH).engram
    assert config is not None
    for layer, hashing in hashings(config).items():
        assert engram_rows(DeepseekConfig.from_hf(V41_FLASH))[layer] == hashing.num_rows
        assert hashing.num_rows > 24 * 16_000_000
        highest = torch.full((1, 4), config.vocab_size - 1)
        rows = hashing.rows(highest)
        assert rows.shape == (1, 24) and 0 <= int(rows.min()) <= int(rows.max()) < hashing.num_rows
        assert all(m % 2 == 1 and m * config.vocab_size < 2**63 for m in hashing._multipliers)


def test_no_prime_serves_twice() -> None:
    config = EngramConfig((3, 1), 3, 4, 8, 10, 50, 0)
    primes = [
        p for hashing in hashings(config).values() for group in hashing._primes for p in group
    ]
    assert sorted(set(primes)) == sorted(primes)
    assert hashings(config)[1]._primes == [[11, 13, 17, 19], [23, 29, 31, 37]]


def test_streams_and_logits_equal_the_reference(
    models_of: dict[str, DeepseekModel], model_dir: Path
) -> None:
    tensors = load_file(model_dir / "model.safetensors")
    reference = TextReference(FIELDS, tensors, token_map=CLASSES)
    model = models_of["float32"]
    images = {t: _image_row(t, 64) for t in range(150) if TOKENS[t] == IMAGE}
    trace = reference(TOKENS, embeddings=images)
    streams: list[torch.Tensor] = []
    model.on_layer = lambda layer, found: streams.append(found.values.clone())
    try:
        logits = _run(model, [150])
    finally:
        model.on_layer = None
    for layer in range(2):
        expected = trace.streams[layer + 1].float()
        torch.testing.assert_close(streams[layer], expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(logits, trace.logits[-1].float(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("sizes", [[1], [2, 3, 1], [41, 1, 60], [42]])
def test_chunks_change_no_bit(models_of: dict[str, DeepseekModel], sizes: list[int]) -> None:
    model = models_of["bfloat16"]
    assert torch.equal(_run(model, sizes), _run(model, [150]))


def test_a_replay_needs_the_ids_before_it(models_of: dict[str, DeepseekModel]) -> None:
    """With them its rows see the same n-grams; a second chunk finds them in the slot."""
    model = models_of["bfloat16"]
    assert model.num_previous_ids == 3
    found: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for previous in ([5, 6, 7], [5, 6, 8]):
        for sizes in ([40], [1, 1, 38]):
            cache = model.new_cache(2)
            cache.pages.zero_()
            with cache.allocate(2) as lease:
                for start, end in _chunks(TOKENS[:40], sizes):
                    chunk = SequenceChunk(
                        TOKENS[start:end], 64 + start, lease.pages, True, lease.window, 64,
                        previous_ids=previous,
                    )  # fmt: skip
                    logits = model.forward([chunk], cache)
            found.setdefault(tuple(previous), []).append(logits)
    for whole, cut in found.values():
        assert torch.equal(whole, cut)
    assert not torch.equal(found[5, 6, 7][0], found[5, 6, 8][0])
    cache = model.new_cache(2)
    with cache.allocate(2) as lease, pytest.raises(BadChunk, match="needs the 3 ids before it"):
        model.forward([SequenceChunk([1], 64, lease.pages, True, lease.window, 64)], cache)


def test_classes_fold_case_accents_width_and_spaces() -> None:
    words = ["a", "A", "á", "ａ", " a", "\n", " ", "\t ", "b", "<x>", "", "ab", "aB "]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="b"))
    tokenizer.decoder = decoders.Fuse()
    found = classes_of(tokenizer, len(words) + 2)
    assert found == [0, 0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 5, 6, 7]


def test_a_model_without_classes_or_with_too_many_is_refused(
    model_dir: Path, tmp_path: Path
) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((model_dir / name).read_bytes())
    with pytest.raises(CorruptModel, match=r"tensor engram\.token_map or a tokenizer\.json"):
        load_model(tmp_path)
    save_file({STORED: torch.arange(256)}, tmp_path / "map.safetensors")
    with pytest.raises(CorruptModel, match="the vocabulary has 256 classes"):
        load_model(tmp_path)
