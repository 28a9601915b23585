"""The draft module that learns is the one that the engine runs, and a run survives its end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.models import load_model
from rorqual_engine.models.drafts import Anchor
from rorqual_engine.models.llama import LlamaModel
from rorqual_engine.models.llama_draft import LlamaDraftConfig
from rorqual_engine.models.options import LoadOptions
from safetensors.torch import load_file

from tests.support.llama_draft import DSPARK, add_draft
from tests.support.tiny_llama import save_tiny_llama
from training.checkpoints import load_checkpoint, newest_checkpoint
from training.smollm2_draft import run
from training.smollm2_draft.draft import Blocks, DraftModel, Guesses
from training.smollm2_draft.export import export
from training.smollm2_draft.learner import most_written
from training.smollm2_draft.loss import draft_loss
from training.smollm2_draft.texts import Conversation, read_texts

BLOCK = DSPARK["block"]


def load(directory: Path, dtype: str = "float32") -> LlamaModel:
    model = load_model(directory, dtype=dtype, options=LoadOptions(drafts=True))
    assert isinstance(model, LlamaModel)
    return model


def test_guesses_are_the_engines(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    weights = add_draft(tmp_path)
    model = load(tmp_path)
    token_ids = weights.pop("mtp.1.token_ids").long()
    ids = token_ids[[(7 * n + n * n) % len(token_ids) for n in range(140)]]
    cache = model.new_cache(2)
    pages = cache.allocate(2).pages
    taps = model.seen([SequenceChunk(ids.numpy(), 0, pages)], cache, DSPARK["taps"])
    config = LlamaDraftConfig.find({"vocab_size": 512, "dspark_config": DSPARK}, 3)
    assert config is not None
    embed = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    draft = DraftModel(model.config, config, 256)
    anchors = torch.arange(20, 136)
    previous = ids[anchors[:, None] + torch.arange(BLOCK)]
    shared = {"embed": embed, "head": embed[token_ids]}
    found = draft(weights | shared, [Blocks(20, ids[anchors], taps[:136])], previous)
    for anchor in (20, 21, 64, 128, 135):
        model.forward([SequenceChunk(ids[:anchor].tolist(), 0, pages)], cache)

        def follow(k: int, logits: torch.Tensor, anchor: int = anchor) -> torch.Tensor:
            return torch.searchsorted(token_ids, ids[anchor + 1 + k : anchor + 2 + k])

        expected = model.draft([Anchor(int(ids[anchor]), anchor, 0, pages=pages)], cache, follow)
        close = {"rtol": 1e-3, "atol": 1e-3}
        torch.testing.assert_close(found.logits[anchor - 20], expected.logits[0], **close)
        raw = expected.raw_confidences[0]
        torch.testing.assert_close(found.confidences[anchor - 20], raw, **close)


def test_gradients_are_those_of_the_plain_formula() -> None:
    logits = torch.randn(3, 2, 7, requires_grad=True)
    wanted = torch.randn(3, 2, 7).softmax(-1)
    is_there = torch.tensor([[True, True], [True, False], [True, True]])
    draft_loss(Guesses(logits, torch.zeros(3, 2)), wanted, is_there).backward()
    assert logits.grad is not None
    found, logits.grad = logits.grad, None
    logs = logits.log_softmax(-1)
    entropy = -(wanted * logs).sum(-1)
    distance = (logs.exp() - wanted).abs().sum(-1)
    weights = is_there * torch.exp(-torch.arange(2) / 2)
    (((0.3 * entropy + 0.7 * distance) * weights).sum() / 3).backward()
    torch.testing.assert_close(found, logits.grad)


def test_tokens_that_may_be_guessed_are_those_that_answers_have_most() -> None:
    texts = [Conversation(np.array([9, 9, 9, 4, 4, 2, 7]), 3), Conversation(np.array([1, 2, 4]), 1)]
    assert most_written(texts, 3, 10).tolist() == [2, 4, 7]


def write_shard(path: Path, count: int) -> None:
    ids = [(n * n + 3 * n) % 17 for n in range(40)]
    np.savez(
        path,
        ids=np.array(ids * count, np.uint16),
        lengths=np.array([40] * count),
        answer_starts=np.array([10] * count),
    )


def test_a_run_learns_goes_on_where_it_stopped_and_is_exported_for_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir, directory = tmp_path / "model", tmp_path / "run"
    model_dir.mkdir()
    save_tiny_llama(model_dir)
    monkeypatch.setattr(run, "DSPARK", DSPARK | {"num_draft_tokens": 64})
    monkeypatch.setattr("training.smollm2_draft.export.DSPARK", run.DSPARK)
    (directory / run.TEXTS).mkdir(parents=True)
    write_shard(directory / run.TEXTS / "0000.npz", run.HELD_OUT + run.STEP_TEXTS)
    assert len(read_texts([directory / run.TEXTS / "0000.npz"])) == run.HELD_OUT + run.STEP_TEXTS
    whole, parts = directory, tmp_path / "parts"
    parts.mkdir()
    (parts / run.TEXTS).symlink_to(directory / run.TEXTS)
    run.train(run.RunOptions(whole, model_dir, 8))
    for _ in range(2):
        run.train(run.RunOptions(parts, model_dir, 8, max_steps=4))
    ends = [newest_checkpoint(d / run.CHECKPOINTS) for d in (whole, parts)]
    assert ends[0] is not None and ends[1] is not None
    (_, first, _), (progress, second, _) = (load_checkpoint(end) for end in ends if end)
    assert progress.step == 8
    assert all(torch.equal(first[name], second[name]) for name in first)
    found = export(whole, model_dir, tmp_path / "out")
    assert len(found.temperatures) == BLOCK
    served = load(tmp_path / "out", "bfloat16")
    assert served.num_drafts == BLOCK
