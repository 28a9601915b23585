"""What learns is what is served: the same logits from the same weights."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rorqual_engine.batch import ImageRows, SequenceChunk
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.deepseek.vision import VisionTower
from rorqual_engine.models.deepseek.vision_config import TowerConfig
from rorqual_engine.prepare.random_v41 import random_tensors, write_random_v41

from tests.unit.training.micro import MICRO
from training.tiny_v41.model.sizes import CONFIG
from training.tiny_v41.model.text import Sequences, TextModel
from training.tiny_v41.model.vision import VisionModel
from training.tiny_v41.model.weights import first_weights, join_experts, published

NUM_TOKENS, NUM_PROMPT = 166, 150


def weights_of(fields: dict[str, Any]) -> dict[str, torch.Tensor]:
    tensors = random_tensors(fields, 0)
    return join_experts({name: value.float() for name, value in tensors.items()})


def served_logits(
    directory: Path, fields: dict[str, Any], ids: list[int], images: dict[int, torch.Tensor]
) -> torch.Tensor:
    """The prompt in chunks with its late layers at the end, then token by token; [answer, V]."""
    write_random_v41(directory, seed=0, changes=fields)
    model = load_model(directory, dtype="float32")
    assert isinstance(model, DeepseekModel)
    cache = model.new_cache(model.kv_layout.num_pages(len(ids)))
    found = []
    with cache.allocate(cache.num_free) as lease:
        cuts = [0, 37, 100, NUM_PROMPT, *range(NUM_PROMPT + 1, len(ids))]
        for start, end in pairwise(cuts):
            inside = [row for row in sorted(images) if start <= row < end]
            rows = None
            if inside:
                values = torch.stack([images[row] for row in inside])
                rows = ImageRows(np.array(inside) - start, values)
            is_prompt, wants = end <= NUM_PROMPT, end >= NUM_PROMPT
            chunk = SequenceChunk(
                ids[start:end], start, lease.pages, wants, lease.window,
                defers_late=is_prompt, embeddings=rows,
            )  # fmt: skip
            logits = model.forward([chunk], cache)
            if wants:
                found.append(logits[-1])
    return torch.stack(found)


def learned_logits(
    fields: dict[str, Any], ids: list[int], images: dict[int, torch.Tensor]
) -> torch.Tensor:
    model = TextModel(DeepseekConfig.from_hf(fields), 256)
    begin = NUM_PROMPT - fields["sliding_window"]
    padded = torch.tensor([ids + [7] * (192 - len(ids))] * 2)
    given = Sequences(
        ids=padded,
        lengths=torch.tensor([len(ids)] * 2),
        late_begins=torch.tensor([begin] * 2),
        late_length=128,
        probes=torch.zeros((2, 1), dtype=torch.int64),
        late_probes=torch.zeros((2, 1), dtype=torch.int64),
        images=torch.stack([images[row] for row in sorted(images)] * 2) if images else None,
    )
    weights = weights_of(fields)
    with torch.no_grad():
        result = model(weights, given, selects=True)
        rows = slice(NUM_PROMPT - 1 - begin, len(ids) - 1 - begin)
        return model.logits(weights, result.streams[1, rows], result.pre[1, rows])


@pytest.mark.parametrize("with_image", [False, True])
def test_logits_of_an_answer_are_those_of_the_engine(tmp_path: Path, with_image: bool) -> None:
    rng = np.random.default_rng(3)
    ids = rng.integers(3, 2000, NUM_TOKENS).tolist()
    images: dict[int, torch.Tensor] = {}
    if with_image:
        for row in (*range(20, 34), 120, 121):
            ids[row] = MICRO["image_token_id"]
            images[row] = torch.from_numpy(rng.standard_normal(64)).float()
    served = served_logits(tmp_path, MICRO, ids, images)[: NUM_TOKENS - NUM_PROMPT]
    learned = learned_logits(MICRO, ids, images)
    torch.testing.assert_close(learned, served, rtol=1e-3, atol=2e-4)


def test_rows_of_a_picture_are_those_of_the_tower(tmp_path: Path) -> None:
    write_random_v41(tmp_path, seed=0, changes=MICRO)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2, 126, 168, 3), dtype=np.uint8)
    tower = VisionTower.load(tmp_path, MICRO, torch.device("cpu"), torch.float32)
    learned = VisionModel(TowerConfig.from_hf(MICRO))(weights_of(MICRO), torch.from_numpy(pixels))
    torch.testing.assert_close(learned, torch.cat(tower.encode(list(pixels))), rtol=1e-4, atol=1e-4)


def test_joined_experts_are_published_one_by_one() -> None:
    tensors = random_tensors(MICRO, 0)
    again = published(join_experts({name: value.float() for name, value in tensors.items()}))
    assert again.keys() == tensors.keys()
    for name, value in tensors.items():
        assert again[name].shape == value.shape
        torch.testing.assert_close(again[name].float(), value.float(), rtol=1e-2, atol=1e-2)


def test_a_model_that_has_learned_nothing_goes_on_from_what_it_read() -> None:
    generator = torch.Generator().manual_seed(0)
    read = torch.randint(300, 2000, (4, 30), generator=generator)
    ids = torch.cat([read, read, read[:, :4]], dim=1)
    none = torch.zeros((4, 1), dtype=torch.int64)
    given = Sequences(ids, torch.full((4,), 64), torch.zeros(4, dtype=torch.int64), 64, none, none)
    model, weights = TextModel(DeepseekConfig.from_hf(CONFIG), 64), first_weights(CONFIG, 0)
    with torch.no_grad():
        result = model(weights, given, selects=False)
        logits = model.logits(weights, result.streams.flatten(0, 1), result.pre.flatten(0, 1))
    is_next = logits.view(4, 64, -1)[:, 32:60].argmax(-1) == ids[:, 33:61]
    assert float(is_next.float().mean()) > 0.5
