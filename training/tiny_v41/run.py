"""A run of training: begun or continued, in one process or two."""

from __future__ import annotations

from multiprocessing.connection import Connection

import torch
from torch import multiprocessing

from training.tiny_v41.checkpoints import Progress, load_checkpoint, newest_checkpoint
from training.tiny_v41.learner import Learner
from training.tiny_v41.model.weights import first_weights
from training.tiny_v41.pair import Pair, Shared
from training.tiny_v41.rendering import Renderer, write_text_files
from training.tiny_v41.stopping import StopSignal
from training.tiny_v41.trainer import CHECKPOINTS, RunOptions, Trainer

TEXT_FILES = "text"
"""Folder of a run: config.json, tokenizer, prompt profile."""
_END_S = 30.0


def begin_or_continue(options: RunOptions) -> tuple[Progress, Learner]:
    """From the newest checkpoint, else from the seed."""
    newest = newest_checkpoint(options.directory / CHECKPOINTS)
    if newest is None:
        weights = first_weights(options.fields, options.seed)
        return Progress(), Learner(options.fields, weights)
    progress, weights, state = load_checkpoint(newest)
    return progress, Learner(options.fields, weights, state)


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
    options: RunOptions, progress: Progress, learner: Learner, num_threads: int
) -> None:
    """The partner is a fresh process: threads of libraries don't survive a fork."""
    shared = Shared.of(learner.weights, learner.learned, learner.optimizer.state)
    context = multiprocessing.get_context("spawn")
    mine, other = context.Pipe()
    args = options, progress, other, shared, num_threads
    partner = context.Process(target=_partner, args=args, daemon=True)
    partner.start()
    other.close()
    learner = Learner(options.fields, shared.weights.tensors(), shared.state())
    _train(options, progress, learner, Pair(0, mine, shared), num_threads)
    partner.join(_END_S)


def _partner(
    options: RunOptions,
    progress: Progress,
    connection: Connection,
    shared: Shared,
    num_threads: int,
) -> None:
    learner = Learner(options.fields, shared.weights.tensors(), shared.state())
    _train(options, progress, learner, Pair(1, connection, shared), num_threads)


def _train(
    options: RunOptions,
    progress: Progress,
    learner: Learner,
    pair: Pair | None,
    num_threads: int,
) -> None:
    torch.set_num_threads(num_threads)
    stop = StopSignal()
    renderer = Renderer(options.directory / TEXT_FILES)
    Trainer(options, renderer, learner, progress, stop, pair).run()
