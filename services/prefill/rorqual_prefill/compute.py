"""The engine thread: continuous chunked prefill over every prompt that waits."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import numpy as np
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.placement import ComputeThreads
from rorqual_policy.blocks import BLOCK_TOKENS
from rorqual_policy.chunking import ChunkParams, WaitingSequence, plan_chunks
from rorqual_policy.compute_threads import should_spread_threads
from rorqual_policy.step_cost import StepCost, chunk_cost_s
from rorqual_policy.step_fit import Refinement, StepSample, prefill_features, refine
from rorqual_runtime.errors import Internal
from rorqual_runtime.waiting import uninterrupted

from rorqual_prefill.prompt import Prompt, WindowModel

_RATE_WEIGHT = 0.2
_MIN_STEP_TOKENS = 2 * BLOCK_TOKENS

log = logging.getLogger(__name__)


class ForwardModel(WindowModel, Protocol):
    """The part of a model that prefill calls."""

    def forward(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> torch.Tensor: ...


def step_budget_tokens(step_tokens: int, tokens_per_s: float, target_s: float) -> int:
    """Tokens of one step: step_tokens, or what the measured rate does in target_s if that is less.

    Never below two blocks, so that a step can be shared; 0 tokens_per_s = not measured.
    """
    if tokens_per_s <= 0:
        return step_tokens
    return min(step_tokens, max(_MIN_STEP_TOKENS, int(tokens_per_s * target_s)))


def _tokens_per_s(cost: StepCost, step_tokens: int) -> float:
    """Of full steps without context."""
    return step_tokens / (cost.a0_s + chunk_cost_s(cost, step_tokens, 0))


class PrefillEngine:
    """Owns the model while it runs; computes waiting prompts chunk by chunk in its own thread."""

    def __init__(
        self,
        model: ForwardModel,
        cache: PagedKvCache,
        *,
        step_tokens: int,
        step_target_s: float,
        cost: StepCost | None = None,
    ) -> None:
        """cost: of a step here, as calibrated; None = not known."""
        self._model = model
        self._cache = cache
        self._step_tokens = step_tokens
        self._step_target_s = step_target_s
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, Prompt] = {}
        self._changed = threading.Condition()
        self._in_step: set[str] = set()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="prefill-engine", daemon=True)
        self._refined = None if cost is None else Refinement.of(cost)
        self.tokens_per_s = 0.0 if cost is None else _tokens_per_s(cost, step_tokens)
        self.num_computed_tokens = 0

    @property
    def cost(self) -> StepCost | None:
        """Of a step: as calibrated, and refined by every step since; None = not known."""
        return None if self._refined is None else StepCost(*self._refined.coefficients)

    def wait_s(self) -> float:
        """Seconds of work that the prompts here have left; 0 where the cost is not known."""
        cost = self.cost
        if cost is None:
            return 0.0
        with self._changed:
            prompts = list(self._waiting.values())
        return sum(chunk_cost_s(cost, p.num_remaining, p.num_done) for p in prompts)

    def start(self) -> None:
        """Begin to compute."""
        self._thread.start()

    async def close(self) -> None:
        """Stop after the step under way."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    @asynccontextmanager
    async def computing(self, prompt: Prompt) -> AsyncIterator[Prompt]:
        """Compute this prompt while the block runs; after it the engine touches its pages no more.

        Leaving early withdraws the prompt, which takes one step at most.
        """
        with self._changed:
            assert prompt.prompt_id not in self._waiting, "two prompts share an id"
            self._waiting[prompt.prompt_id] = prompt
            self._changed.notify_all()
        try:
            yield prompt
        finally:
            if not prompt.exported.done() or prompt.exported.cancelled():
                await uninterrupted(asyncio.to_thread(self._withdraw, prompt))

    def _withdraw(self, prompt: Prompt) -> None:
        with self._changed:
            prompt.is_withdrawn = True
            self._waiting.pop(prompt.prompt_id, None)
            self._changed.wait_for(lambda: prompt.prompt_id not in self._in_step)

    def _run(self) -> None:
        threads = ComputeThreads()
        while self._wait_for_work():
            threads.spread(should_spread_threads(len(self._waiting)))
            try:
                self._step()
            except Exception as err:
                log.exception("prefill step failed")
                self._fail_step(err)
            finally:
                with self._changed:
                    self._in_step.clear()
                    self._changed.notify_all()

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            return not self._is_closing

    def _step(self) -> None:
        """One forward over the planned chunks of some prompts."""
        planned = self._plan()
        if not planned:
            return
        started_s = time.perf_counter()
        chunks = [prompt.chunk(num_tokens) for prompt, num_tokens in planned]
        with torch.inference_mode():
            logits = self._model.forward(chunks, self._cache).cpu().numpy()
            for prompt, num_tokens in planned:
                prompt.save_window(self._model, self._cache, num_tokens)
        took_s = time.perf_counter() - started_s
        self._note_rate(sum(n for _, n in planned), took_s)
        self._note_cost([(n, prompt.num_done) for prompt, n in planned], took_s)
        self._tell_logits(planned, logits)
        for prompt, num_tokens in planned:
            self._advance(prompt, num_tokens)
            if prompt.num_remaining == 0:
                self._finish(prompt)

    def _plan(self) -> list[tuple[Prompt, int]]:
        """Choose the chunks of the next step and tell which prompts are on their last one."""
        with self._changed:
            waiting = [
                WaitingSequence(p.prompt_id, p.num_remaining, p.num_done, p.arrival_s)
                for p in self._waiting.values()
            ]
            budget = step_budget_tokens(self._step_tokens, self.tokens_per_s, self._step_target_s)
            chunks = plan_chunks(waiting, budget, self._params())
            planned = [
                (prompt, prompt.cut(chunk.num_tokens))
                for chunk in chunks
                for prompt in (self._waiting[chunk.sequence_id],)
            ]
            self._in_step = {prompt.prompt_id for prompt, _ in planned}
        for prompt, num_tokens in planned:
            if num_tokens == prompt.num_remaining:
                self._post(_resolve, prompt.last_chunk_started, None)
        return planned

    def _params(self) -> ChunkParams:
        if self.tokens_per_s <= 0:
            return ChunkParams()
        return ChunkParams(tokens_per_s=self.tokens_per_s)

    def _note_rate(self, num_tokens: int, took_s: float) -> None:
        rate = num_tokens / max(took_s, 1e-6)
        weight = _RATE_WEIGHT * min(1.0, num_tokens / BLOCK_TOKENS)
        self.tokens_per_s += (rate - self.tokens_per_s) * (weight if self.tokens_per_s else 1.0)
        self.num_computed_tokens += num_tokens

    def _note_cost(self, chunks: list[tuple[int, int]], took_s: float) -> None:
        if self._refined is not None:
            sample = StepSample(prefill_features(chunks), took_s)
            self._refined = refine(self._refined, sample)

    def _tell_logits(self, planned: list[tuple[Prompt, int]], logits: np.ndarray) -> None:
        """Before any page is copied: first tokens need no pages."""
        complete = [prompt for prompt, num_tokens in planned if num_tokens == prompt.num_remaining]
        for prompt, row in zip(complete, logits, strict=True):
            self._post(_resolve, prompt.logits, np.array(row, dtype=np.float32))

    def _advance(self, prompt: Prompt, num_tokens: int) -> None:
        first_open = prompt.num_done // BLOCK_TOKENS
        prompt.num_done += num_tokens
        done = prompt.num_done
        end = len(prompt.pages) if prompt.num_remaining == 0 else done // BLOCK_TOKENS
        if not prompt.is_withdrawn:
            for index in range(first_open, end):
                prompt.on_page(index)
            self._post(prompt.on_progress, prompt.num_remaining)

    def _finish(self, prompt: Prompt) -> None:
        with self._changed:
            self._waiting.pop(prompt.prompt_id, None)
        self._post(_resolve, prompt.exported, None)

    def _fail_step(self, err: Exception) -> None:
        """Every prompt of a failed step fails: the step's effect on its pages is unknown."""
        with self._changed:
            failed = [self._waiting.pop(i) for i in self._in_step if i in self._waiting]
        for prompt in failed:
            self._post(_fail, prompt, Internal(f"prefill failed: {type(err).__name__}"))

    def _post(self, function: Callable[..., None], *args: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(prompt: Prompt, err: Exception) -> None:
    """Tell whoever waits for the prompt, once."""
    awaited = prompt.exported if prompt.logits.done() else prompt.logits
    if not awaited.done():
        awaited.set_exception(err)
    _resolve(prompt.exported, None)
