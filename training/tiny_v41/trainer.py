"""A run through the stages: steps, a line of log now and then, checkpoints, an end on request."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from training.checkpoints import Progress, save_checkpoint
from training.pair import Pair
from training.stopping import Stopped, StopSignal
from training.tiny_v41.batches import Batch, batches_of, halves_of, samples_of_step
from training.tiny_v41.draft_learner import DraftLearner
from training.tiny_v41.evaluation import evaluate, evaluate_draft
from training.tiny_v41.learner import Learner
from training.tiny_v41.measured import Measured, Total
from training.tiny_v41.rendering import Renderer, Sample
from training.tiny_v41.stages import Stage

T = TypeVar("T")

CHECKPOINTS = "checkpoints"
"""Folder of a run."""
_LOG_STEPS = 10
_CHECKPOINT_S = 240.0
_EVALUATION_STEPS = 250


@dataclass(frozen=True)
class RunOptions:
    """Where a run lives and what it is made from."""

    directory: Path
    stages: tuple[Stage, ...]
    fields: dict[str, Any]
    """The model's config.json"""
    part: Literal["model", "draft"] = "model"
    """What learns; for the draft module the model must be there"""
    seed: int = 0
    max_steps: int | None = None
    """Of this run; None = to the end of the last stage"""


class Trainer:
    """One process of a run, alone or of a pair. Rank 0 logs, evaluates and saves."""

    def __init__(
        self,
        options: RunOptions,
        renderer: Renderer,
        learner: Learner | DraftLearner,
        progress: Progress,
        stop: StopSignal,
        pair: Pair | None = None,
    ) -> None:
        self._options, self._renderer, self._learner = options, renderer, learner
        self._progress, self._stop, self._pair = progress, stop, pair
        self._is_first = pair is None or pair.rank == 0

    def run(self) -> None:
        """To the end, to max_steps, or until one of the processes is told to stop; then saves."""
        saved, steps = time.monotonic(), 0
        window, since, tokens = Measured(), time.monotonic(), self._progress.total_tokens
        while not self._is_over(steps):
            began = time.monotonic()
            measured = self._step()
            if measured is None:
                break
            steps += 1
            self._progress.seconds += time.monotonic() - began
            window.add(measured)
            if not self._is_first:
                continue
            if self._progress.step % _LOG_STEPS == 0:
                elapsed = time.monotonic() - since
                self._log(window, (self._progress.total_tokens - tokens) / elapsed)
                window, since, tokens = Measured(), time.monotonic(), self._progress.total_tokens
            if self._progress.step and self._progress.step % _EVALUATION_STEPS == 0:
                self._evaluate()
            if time.monotonic() - saved > _CHECKPOINT_S:
                self._save()
                saved = time.monotonic()
        if self._is_first:
            self._save()

    def _save(self) -> None:
        state = self._learner.optimizer.state
        directory = self._options.directory / CHECKPOINTS
        save_checkpoint(directory, self._progress, self._learner.weights, state)

    def _is_over(self, steps: int) -> bool:
        limit = self._options.max_steps
        is_done = self._progress.stage >= len(self._options.stages)
        is_over = is_done or self._stop.is_set or (limit is not None and steps >= limit)
        return is_over if self._pair is None else any(self._pair.tell(is_over))

    def _step(self) -> Measured | None:
        """None = stopped; the step has not been."""
        stage, progress = self._stage(), self._progress
        seed = f"{self._options.seed} {stage.name} {progress.step}"
        samples = samples_of_step(
            self._renderer, seed, stage.shares, stage.max_tokens, stage.step_tokens
        )
        found = self._grads(samples)
        if found is None:
            return None
        grads, measured = found
        at = progress.step, progress.stage_tokens
        self._learner.optimizer.step(
            grads, stage.rate_at(stage.rates, *at), stage.rate_at(stage.matrix_rates, *at)
        )
        assert measured.counts is not None
        if self._is_first:
            self._learner.balance(measured.counts, stage.balance_rate)
        if self._pair is not None:
            self._pair.tell(progress.step)  # both have stepped: weights may be read and saved
        self._advance(sum(map(len, samples)))
        return measured

    def _grads(self, samples: Sequence[Sample]) -> tuple[dict[str, torch.Tensor], Measured] | None:
        """Of the tensors that this process steps; None = one of the processes was stopped."""
        stage, pair = self._stage(), self._pair
        halves = [samples] if pair is None else halves_of(samples)
        batches = [self._batches(half) for half in halves]
        own = batches[0 if pair is None else pair.rank]
        total = Total.of([batch for half in batches for batch in half])
        found = self._dropped(lambda: self._learner.grads(own, total, selects=stage.selects))
        if pair is None:
            return found
        if found is not None:
            pair.write(found[0])
        both = Measured()
        for measured in pair.tell(None if found is None else found[1]):
            if measured is None:
                return None
            both.add(measured)
        return pair.own_sums(), both

    def _dropped(self, compute: Callable[[], T]) -> T | None:
        """What is computed; None = the process was told to stop meanwhile."""
        try:
            with self._stop.droppable():
                return compute()
        except Stopped:
            return None

    def _batches(self, samples: Sequence[Sample]) -> list[Batch]:
        config, stage = self._learner.config, self._stage()
        assert config.image_token_id is not None
        return list(
            batches_of(
                sorted(samples, key=len), config.window, config.image_token_id,
                stage.prompt_weight, self._progress.step,
            )
        )  # fmt: skip

    def _stage(self) -> Stage:
        return self._options.stages[self._progress.stage]

    def _advance(self, num_tokens: int) -> None:
        progress = self._progress
        progress.step += 1
        progress.stage_tokens += num_tokens
        progress.total_tokens += num_tokens
        if progress.stage_tokens >= self._stage().tokens:
            progress.stage, progress.step, progress.stage_tokens = progress.stage + 1, 0, 0

    def _log(self, found: Measured, tokens_per_s: float) -> None:
        assert found.counts is not None
        loads = found.counts.sum(1).float()
        self._write(
            {
                "stage": self._progress.stage,
                "step": self._progress.step,
                "tokens": self._progress.total_tokens,
                "seconds": round(self._progress.seconds, 1),
                "tokens_per_s": round(tokens_per_s),
                "answer_loss": round(found.answer_loss / max(1, found.num_answer_tokens), 4),
                "loss": round(found.loss / _LOG_STEPS, 4),
                "index_loss": round(found.index_loss / max(1, found.num_batches), 4),
                "naming_loss": round(found.naming_loss / _LOG_STEPS, 4),
                "load_peak": round(float((loads.amax(1) / loads.mean(1)).max()), 2),
                "exact": found.exact_shares(),
                "accepted": found.accepted_lengths(),
            }
        )

    def _evaluate(self) -> None:
        if self._progress.stage >= len(self._options.stages):
            return
        scores = self._dropped(self._scores)
        if scores is None:
            return
        self._write(
            {"stage": self._progress.stage, "step": self._progress.step, "held_out": scores}
        )

    def _scores(self) -> dict[str, float]:
        stage, learner = self._stage(), self._learner
        if isinstance(learner, DraftLearner):
            return evaluate_draft(learner, self._renderer, stage.max_tokens, selects=stage.selects)
        return evaluate(learner, self._renderer, stage.max_tokens, selects=stage.selects)

    def _write(self, line: dict[str, Any]) -> None:
        self._options.directory.mkdir(parents=True, exist_ok=True)
        with (self._options.directory / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
