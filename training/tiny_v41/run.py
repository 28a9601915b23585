"""A run of training: begun or continued, in one process or two."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import multiprocessing

from training.checkpoints import Progress, load_checkpoint, newest_checkpoint
from training.pair import Pair, Shared
from training.stopping import StopSignal
from training.tiny_v41.draft_learner import DRAFT_PREFIX, DraftLearner
from training.tiny_v41.learner import Learner
from training.tiny_v41.model.weights import first_weights
from training.tiny_v41.rendering import Renderer, write_text_files
from training.tiny_v41.tokenizer import twins_of
from training.tiny_v41.trainer import CHECKPOINTS, RunOptions, Trainer

TEXT_FILES = "text"
"""Folder of a run: config.json, tokenizer, prompt profile."""
_END_S = 30.0


AnyLearner = Learner | DraftLearner
DRAFT = "draft"
"""Folder of a run: what the draft module's own run leaves."""


class NoModel(RuntimeError):
    """A draft module needs a model that has learned."""


def begin_or_continue(options: RunOptions) -> tuple[Progress, AnyLearner]:
    """From the newest checkpoint, else from the seed; a draft module with the model's newest one.

    Raises: NoModel.
    """
    model = _model_of(options) if options.part == "draft" else None
    newest = newest_checkpoint(options.directory / CHECKPOINTS)
    if newest is not None:
        progress, weights, state = load_checkpoint(newest)
        if model is not None:
            weights |= {n: w for n, w in model.items() if not n.startswith(DRAFT_PREFIX)}
        return progress, _learner(options, weights, state)
    if model is None:
        twins = twins_of(options.directory / TEXT_FILES)
        model = first_weights(options.fields, options.seed, twins)
    return Progress(), _learner(options, model, None)


def _model_of(options: RunOptions) -> dict[str, torch.Tensor]:
    """Weights that a draft module learns to guess: the model may have learned more since."""
    newest = newest_checkpoint(options.directory.parent / CHECKPOINTS)
    if newest is None:
        raise NoModel(f"{options.directory.parent / CHECKPOINTS} has no checkpoint")
    return load_checkpoint(newest)[1]


def _learner(
    options: RunOptions, weights: dict[str, torch.Tensor], state: Mapping[str, Any] | None
) -> AnyLearner:
    kind = Learner if options.part == "model" else DraftLearner
    return kind(options.fields, weights, state)


def train(options: RunOptions, *, num_processes: int, num_threads: int) -> None:
    """Trains until the end or a signal. num_processes: 1 or 2, of num_threads each."""
    text_files = options.directory / TEXT_FILES
    if not (text_files / "prompt_profile.json").exists():
        write_text_files(text_files)
    progress, learner = begin_or_continue(options)
    if num_processes == 1:
        _train(options, progress, learner, None, num_threads)
    else:
        _train_pair(options, progress, learner, num_threads)


def _train_pair(
    options: RunOptions, progress: Progress, learner: AnyLearner, num_threads: int
) -> None:
    """The partner is a fresh process: threads of libraries don't survive a fork."""
    shared = Shared.of(learner.weights, learner.learned, learner.optimizer.state)
    context = multiprocessing.get_context("spawn")
    mine, other = context.Pipe()
    args = options, progress, other, shared, num_threads
    partner = context.Process(target=_partner, args=args, daemon=True)
    partner.start()
    other.close()
    learner = _learner(options, shared.weights.tensors(), shared.state())
    _train(options, progress, learner, Pair(0, mine, shared), num_threads)
    partner.join(_END_S)


def _partner(
    options: RunOptions,
    progress: Progress,
    connection: Connection,
    shared: Shared,
    num_threads: int,
) -> None:
    learner = _learner(options, shared.weights.tensors(), shared.state())
    _train(options, progress, learner, Pair(1, connection, shared), num_threads)


def _train(
    options: RunOptions,
    progress: Progress,
    learner: AnyLearner,
    pair: Pair | None,
    num_threads: int,
) -> None:
    torch.set_num_threads(num_threads)
    stop = StopSignal()
    renderer = Renderer(options.directory / TEXT_FILES)
    Trainer(options, renderer, learner, progress, stop, pair).run()
