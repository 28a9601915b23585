"""A run: steps over texts as they become more, a line of log now and then, checkpoints, an end on
request."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rorqual_engine.models import load_model
from rorqual_engine.models.llama import LlamaModel
from rorqual_engine.models.llama_draft import LlamaDraftConfig
from rorqual_engine.models.weights import Weights as ModelFiles

from training.checkpoints import Progress, load_checkpoint, newest_checkpoint, save_checkpoint
from training.smollm2_draft.learner import DraftLearner, Measured, first_weights, most_written
from training.smollm2_draft.texts import Conversation, read_texts, shards
from training.stopping import Stopped, StopSignal

DSPARK: dict[str, Any] = {
    "block": 4,
    "taps": [12, 21, 30],
    "num_layers": 2,
    "rank": 128,
    "num_draft_tokens": 8192,
}
"""dspark_config of what is trained, without temperatures."""
TEXTS, CHECKPOINTS = "texts", "checkpoints"
"""Folders of a run."""
STEP_TEXTS = 8
HELD_OUT = 24
"""The first conversations of the first file are never learned from."""
_RATE, _MATRIX_RATE = 2e-3, 0.02
"""Of AdamW and of Muon, behind the first steps; they fall in a straight line to a twentieth."""
_WARMUP_STEPS = 20
_LOG_STEPS = 10
_EVALUATION_STEPS = 100
_CHECKPOINT_S = 120.0
_SHORTEST_ANSWER = 8


@dataclass(frozen=True)
class RunOptions:
    """Where a run lives, and how long it is."""

    directory: Path
    model_dir: Path
    total_steps: int
    """Of the whole run; rates fall towards its end"""
    max_steps: int | None = None
    """Of this run of the program; None = to the end"""


class NoTexts(RuntimeError):
    """There is nothing to learn from."""


def known_texts(directory: Path) -> list[Conversation]:
    """All with an answer worth the name, the held-out ones first."""
    texts = read_texts(shards(directory / TEXTS))
    return [t for t in texts if len(t.token_ids) - t.answer_start >= _SHORTEST_ANSWER]


def begin_or_continue(
    options: RunOptions, model: LlamaModel, files: ModelFiles
) -> tuple[Progress, DraftLearner]:
    """From the newest checkpoint, else from first weights. Raises: NoTexts."""
    fields = {"vocab_size": model.vocab_size, "dspark_config": DSPARK}
    config = LlamaDraftConfig.find(fields, model.config.num_layers)
    assert config is not None
    embed = files.get("model.embed_tokens.weight")
    tables = {"embed": embed, "head": embed}
    newest = newest_checkpoint(options.directory / CHECKPOINTS)
    if newest is not None:
        progress, weights, state = load_checkpoint(newest)
        return progress, DraftLearner(model, tables, config, weights, state)
    texts = known_texts(options.directory)
    if not texts:
        raise NoTexts(f"{options.directory / TEXTS} has no texts yet")
    token_ids = most_written(texts, config.num_tokens, model.vocab_size)
    norm = files.get("model.norm.weight")
    weights = first_weights(model.config, config, token_ids, norm)
    return Progress(), DraftLearner(model, tables, config, weights)


def train(options: RunOptions) -> None:
    """Trains until the end or a signal; what a signal interrupts is dropped."""
    model, files = load_frozen(options.model_dir)
    progress, learner = begin_or_continue(options, model, files)
    _Run(options, learner, progress, StopSignal()).run()


def load_frozen(model_dir: Path) -> tuple[LlamaModel, ModelFiles]:
    """The model whose answers are guessed, and its tensors."""
    model = load_model(model_dir)
    assert isinstance(model, LlamaModel)
    assert model.config.tied_head
    return model, ModelFiles(model_dir, model.device, model.dtype)


class _Run:
    def __init__(
        self, options: RunOptions, learner: DraftLearner, progress: Progress, stop: StopSignal
    ) -> None:
        self._options, self._learner = options, learner
        self._progress, self._stop = progress, stop
        self._texts: list[Conversation] = []

    def run(self) -> None:
        saved, window, steps = time.monotonic(), Measured(), 0
        while self._progress.step < self._options.total_steps and steps != self._options.max_steps:
            measured = self._dropped(self._step)
            if measured is None:
                break
            steps += 1
            window.add(measured)
            if self._progress.step % _LOG_STEPS == 0:
                self._log(window.summary())
                window = Measured()
            if self._progress.step % _EVALUATION_STEPS == 0:
                self._evaluate()
            if time.monotonic() - saved > _CHECKPOINT_S:
                self._save()
                saved = time.monotonic()
        self._save()

    def _step(self) -> Measured:
        progress, began = self._progress, time.monotonic()
        if not self._texts or progress.step % _LOG_STEPS == 0:
            self._texts = known_texts(self._options.directory)[HELD_OUT:]
        texts = random.Random(progress.step).sample(self._texts, STEP_TEXTS)
        grads, measured = self._learner.grads(texts)
        share = self._rate_share()
        self._learner.optimizer.step(grads, share * _RATE, share * _MATRIX_RATE)
        progress.step += 1
        progress.total_tokens += measured.num_blocks
        progress.seconds += time.monotonic() - began
        return measured

    def _rate_share(self) -> float:
        step = self._progress.step
        falling = 1 - 0.95 * step / self._options.total_steps
        return falling * min(1.0, (step + 1) / _WARMUP_STEPS)

    def _evaluate(self) -> None:
        held_out = known_texts(self._options.directory)[:HELD_OUT]
        found = self._dropped(lambda: evaluated(self._learner, held_out))
        if found is not None:
            self._log({"held_out": found.summary()})

    def _dropped(self, compute: Callable[[], Measured]) -> Measured | None:
        try:
            with self._stop.droppable():
                return compute()
        except Stopped:
            return None

    def _save(self) -> None:
        directory, learner = self._options.directory / CHECKPOINTS, self._learner
        save_checkpoint(directory, self._progress, learner.weights, learner.optimizer.state)

    def _log(self, found: dict[str, Any]) -> None:
        progress = self._progress
        line = {
            "step": progress.step,
            "blocks": progress.total_tokens,
            "seconds": round(progress.seconds, 1),
            "texts": len(self._texts),
            **found,
        }
        with (self._options.directory / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def evaluated(learner: DraftLearner, texts: list[Conversation]) -> Measured:
    """Over texts that are not learned from, a few at a time."""
    whole = Measured()
    for first in range(0, len(texts), 4):
        whole.add(learner.judge(texts[first : first + 4])[2])
    return whole
