"""The draft module that learns is the one that guesses when served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.drafts import Anchor
from rorqual_engine.models.options import LoadOptions
from rorqual_engine.prepare.random_v41 import write_random_v41

from tests.unit.training.micro import MICRO
from tests.unit.training.test_model import weights_of
from training.tiny_v41.model.draft import Anchors, DraftModel, Guesses, draft_loss
from training.tiny_v41.model.text import Sequences, TextModel

NUM_PROMPT, ANCHOR = 140, 91


def test_guesses_behind_a_prompt_are_those_of_the_engine(tmp_path: Path) -> None:
    ids = np.random.default_rng(5).integers(3, 2000, NUM_PROMPT).tolist()
    write_random_v41(tmp_path, seed=0, changes=MICRO)
    engine = load_model(tmp_path, dtype="float32", options=LoadOptions(drafts=True))
    assert isinstance(engine, DeepseekModel)
    cache = engine.new_cache(engine.kv_layout.num_pages(NUM_PROMPT + 8))
    with cache.allocate(cache.num_free) as lease:
        assert lease.window is not None
        chunk = SequenceChunk(ids, 0, lease.pages, True, lease.window, defers_late=True)
        engine.forward([chunk], cache)
        served = engine.draft([Anchor(ANCHOR, NUM_PROMPT, lease.window)], cache)

    config = DeepseekConfig.from_hf(MICRO)
    begin = NUM_PROMPT - config.window
    given = Sequences(
        ids=torch.tensor([ids + [5] * (192 - NUM_PROMPT)]),
        lengths=torch.tensor([NUM_PROMPT]),
        late_begins=torch.tensor([begin]),
        late_length=128,
        probes=torch.zeros((1, 1), dtype=torch.int64),
        late_probes=torch.zeros((1, 1), dtype=torch.int64),
    )
    weights = weights_of(MICRO)
    anchors = Anchors(torch.tensor([0]), torch.tensor([NUM_PROMPT - begin]))
    previous = torch.cat([torch.tensor([[ANCHOR]]), served.tokens[:, :-1]], dim=1)
    with torch.no_grad():
        target = TextModel(config, 256)(weights, given, selects=True)
        learned = DraftModel(config, 256)(weights, given, target, anchors, previous)
    torch.testing.assert_close(learned.logits, served.logits, rtol=1e-3, atol=3e-4)
    torch.testing.assert_close(learned.confidences, served.raw_confidences, rtol=1e-3, atol=3e-4)


def test_loss_is_least_where_guesses_are_the_models_own() -> None:
    generator = torch.Generator().manual_seed(0)
    wanted = torch.randn((6, 5, 40), generator=generator) * 3
    labels, is_learned = wanted.argmax(-1), torch.ones((6, 5), dtype=torch.bool)
    counts = torch.zeros((1, 1), dtype=torch.int64)
    sure = Guesses(wanted, torch.full((6, 5), 8.0), counts)
    unsure = replace(sure, confidences=torch.zeros((6, 5)))
    other = replace(sure, logits=wanted.roll(1, dims=0))
    losses = [float(draft_loss(g, wanted, labels, is_learned)) for g in (sure, unsure, other)]
    assert losses[0] < losses[1] < losses[2]


def test_nothing_is_learned_behind_the_first_place_that_is_not() -> None:
    wanted = torch.randn((2, 5, 40), generator=torch.Generator().manual_seed(1))
    is_learned = torch.tensor([[True, False, True, True, True], [True] * 5])
    labels, counts = wanted.argmax(-1), torch.zeros((1, 1), dtype=torch.int64)
    logits = torch.zeros((2, 5, 40), requires_grad=True)
    draft_loss(Guesses(logits, torch.zeros((2, 5)), counts), wanted, labels, is_learned).backward()
    assert logits.grad is not None
    moved = logits.grad.abs().sum(-1) > 0
    assert moved.tolist() == [[True, False, False, False, False], [True] * 5]
