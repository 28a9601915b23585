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
from rorqual_policy.chunking import StepPlan, WaitingSequence, plan_chunks
from rorqual_policy.compute_threads import should_spread_threads
from rorqual_policy.prefill_policy import PREFILL_POLICIES
from rorqual_policy.step_cost import StepCost, chunk_cost_s, step_budget_s
from rorqual_policy.step_fit import Refinement, StepSample, prefill_features, refine
from rorqual_runtime.decision_log import log_decision
from rorqual_runtime.errors import Internal
from rorqual_runtime.waiting import uninterrupted

from rorqual_prefill.prompt import Prompt, WindowModel

_RATE_WEIGHT = 0.2
_GUESSED_COST = StepCost(a0_s=50e-3, a1_s=1e-4, a2_s=0.0, a3_s=0.0)
"""Makes full steps until one of _TELLING_TOKENS has been measured, where nothing was calibrated."""
_TELLING_TOKENS = 32

log = logging.getLogger(__name__)


class ForwardModel(WindowModel, Protocol):
    """The part of a model that prefill calls."""

    def forward(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> torch.Tensor: ...


def _tokens_per_s(cost: StepCost, step_tokens: int) -> float:
    """Of full steps without context."""
    return step_tokens / (cost.a0_s + chunk_cost_s(cost, step_tokens, 0))


def _rough_cost(num_tokens: int, took_s: float) -> StepCost:
    """As one step tells: a tenth of it for the step, the rest for its tokens."""
    return StepCost(took_s / 10, 0.9 * took_s / num_tokens, 0.0, 0.0)


class PrefillEngine:
    """Owns the model while it runs; computes waiting prompts chunk by chunk in its own thread."""

    def __init__(
        self,
        model: ForwardModel,
        cache: PagedKvCache,
        *,
        step_tokens: int,
        step_limit_s: float,
        policy: str = "rorqual",
        cost: StepCost | None = None,
        waiting: Callable[[], tuple[float, int]] = lambda: (0.0, 1),
    ) -> None:
        """cost: of a step here, as calibrated; None = not known. waiting: seconds of work in line,
        and the instances that share it; called in the engine thread."""
        self._model = model
        self._cache = cache
        self._step_tokens = step_tokens
        self._step_limit_s = step_limit_s
        self._make_policy = PREFILL_POLICIES[policy]
        self._waiting_work = waiting
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, Prompt] = {}
        self._changed = threading.Condition()
        self._in_step: set[str] = set()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="prefill-engine", daemon=True)
        self._refined = None if cost is None else Refinement.of(cost)
        self.tokens_per_s = 0.0 if cost is None else _tokens_per_s(cost, step_tokens)
        self.num_computed_tokens = 0
        self._step_end_s = 0.0
        """When the step under way should be done."""

    @property
    def cost(self) -> StepCost | None:
        """Of a step: as calibrated, and refined by every step since; None = not known."""
        return None if self._refined is None else StepCost(*self._refined.coefficients)

    @property
    def assumed_cost(self) -> StepCost:
        """The same, or a guess."""
        return self.cost or _GUESSED_COST

    @property
    def capacity_tokens_per_s(self) -> float:
        """Of full steps, whatever it has to do now; 0 = the cost is not known."""
        return 0.0 if self.cost is None else _tokens_per_s(self.cost, self._step_tokens)

    def wait_s(self) -> float:
        """Seconds of work that the prompts here have left; 0 where the cost is not known."""
        cost = self.cost
        if cost is None:
            return 0.0
        with self._changed:
            prompts = list(self._waiting.values())
        return sum(chunk_cost_s(cost, p.num_remaining, p.num_done) for p in prompts)

    def step_left_s(self) -> float:
        """Expected seconds until the step under way is done; 0 = there is none, or it is late."""
        return max(0.0, self._step_end_s - time.perf_counter())

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
                self._step_end_s = 0.0
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
            logits = self._model.forward(chunks, self._cache).float().cpu().numpy()
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
            given = waiting, self._step_plan()
            chunks = plan_chunks(*given)
            log_decision("chunks", given, chunks)
            planned = [
                (prompt, prompt.cut(chunk.num_tokens))
                for chunk in chunks
                for prompt in (self._waiting[chunk.sequence_id],)
            ]
            self._in_step = {prompt.prompt_id for prompt, _ in planned}
        for prompt, num_tokens in planned:
            self._post(prompt.on_progress, prompt.num_remaining - num_tokens)
            if num_tokens == prompt.num_remaining:
                self._post(_resolve, prompt.last_chunk_started, None)
        self._step_end_s = time.perf_counter() + self._expected_s(planned)
        return planned

    def _expected_s(self, planned: list[tuple[Prompt, int]]) -> float:
        cost = self.assumed_cost
        return cost.a0_s + sum(chunk_cost_s(cost, n, prompt.num_done) for prompt, n in planned)

    def _step_plan(self) -> StepPlan:
        cost = self.assumed_cost
        policy = self._make_policy(cost, self._step_limit_s)
        budget_s = step_budget_s(cost, policy.budget, *self._waiting_work())
        spare_s = budget_s - cost.a0_s
        return StepPlan(cost, spare_s, self._step_tokens, policy.order, policy.shared_part)

    def _note_rate(self, num_tokens: int, took_s: float) -> None:
        rate = num_tokens / max(took_s, 1e-6)
        weight = _RATE_WEIGHT * min(1.0, num_tokens / BLOCK_TOKENS)
        self.tokens_per_s += (rate - self.tokens_per_s) * (weight if self.tokens_per_s else 1.0)
        self.num_computed_tokens += num_tokens

    def _note_cost(self, chunks: list[tuple[int, int]], took_s: float) -> None:
        if self._refined is not None:
            sample = StepSample(prefill_features(chunks), took_s)
            self._refined = refine(self._refined, sample)
        elif (num_tokens := sum(n for n, _ in chunks)) >= _TELLING_TOKENS:
            self._refined = Refinement.of(_rough_cost(num_tokens, max(took_s, 1e-6)))

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
        """Every prompt of a failed step fails: the step's effect on its pages is unknown. Where not
        even a step could be planned all fail, for the next plan would fail alike."""
        with self._changed:
            ids = self._in_step or set(self._waiting)
            failed = [self._waiting.pop(i) for i in ids if i in self._waiting]
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
