"""Decode's engine thread under a load that never lets up: as one request ends, the next begins.

Prompts are computed beforehand and their state is kept, so that only decode is measured, and every
run begins with the same state.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from rorqual_decode.block_chain import BlockChain
from rorqual_decode.engine_thread import DecodeEngine
from rorqual_decode.generation import Emission, GenerationKey, GenerationSpec, SamplingSpec
from rorqual_decode.page_hold import PageHold
from rorqual_decode.running import Running
from rorqual_decode.sampling import choose_tokens
from rorqual_decode.speculation import Speculation
from rorqual_decode.stopping import make_stop_rule
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import PagedKvCache, PageLease
from rorqual_engine.models import CausalModel
from rorqual_engine.speculation import Drafter

from bench.decode_session import NoWriter

_RUN_TIMEOUT_S = 600.0
_PREFILL_TOKENS = 512


class KeptLease:
    """Pages that outlive the sequences on them."""

    def __init__(self, pages: Sequence[int]) -> None:
        self.pages = pages

    def grow(self, num_pages: int) -> None:
        raise AssertionError("a prompt has the pages of its longest answer from the beginning")

    def release(self) -> None:
        return


@dataclass(frozen=True)
class Prompt:
    """A computed prompt: what a sequence that answers it begins with."""

    number: int
    ids: list[int]
    lease: PageLease
    logits: torch.Tensor
    """[1, vocab], of the first token of the answer"""
    snapshot: torch.Tensor | None
    """Of its window slot, where the model has windows."""


@dataclass(frozen=True)
class Load:
    """What came out of one run."""

    tokens_per_s: float
    """While all places were taken."""
    tokens_a_step: float
    """Mean of a sequence and step."""
    guesses_a_step: float
    answers: dict[int, list[int]]
    """By number of the prompt, its whole output."""


class Saturated:
    """A model, its cache and some computed prompts."""

    def __init__(
        self,
        model: CausalModel,
        cache: PagedKvCache,
        prompts: Sequence[list[int]],
        *,
        max_new_tokens: int,
        temperature: float,
    ) -> None:
        self.cache = cache
        self._model, self._max_new = model, max_new_tokens
        self._temperature = temperature
        with torch.inference_mode():
            self._prompts = [self._computed(n, ids) for n, ids in enumerate(prompts)]

    def run(self, concurrency: int, count: int, drafter: Drafter, speculation: Speculation) -> Load:
        """The first count prompts, so many of them at a time."""
        assert count > concurrency, "no place is given a second request: nothing is saturated"
        begun = [self._begin(prompt, drafter) for prompt in self._prompts[:count]]
        waiting = deque(begun[concurrency:])
        answers = {int(s.spec.key.request_id): _first_ids(s) for s in begun}
        num_left, num_tokens, num_rounds, num_guesses = count, 0, 0, 0
        saturated: list[tuple[float, int]] = []
        have_ended = threading.Event()

        def on_output(emissions: list[Emission]) -> None:
            nonlocal num_left, num_tokens, num_rounds, num_guesses
            for emission in emissions:
                answers[int(emission.key.request_id)] += emission.token_ids
                num_tokens += len(emission.token_ids)
                num_guesses += emission.num_guessed
                num_left -= emission.finish is not None
                if emission.finish is not None and waiting:
                    engine.add(waiting.popleft())
            num_rounds += len(emissions)
            if not waiting and not saturated:
                saturated.append((time.perf_counter(), num_tokens))
            if not num_left:
                have_ended.set()

        writer = cast(Any, NoWriter())
        engine = DecodeEngine(self._model, self.cache, writer, on_output, speculation=speculation)
        for sequence in begun[:concurrency]:
            engine.add(sequence)
        began_s = time.perf_counter()
        engine.start()
        assert have_ended.wait(_RUN_TIMEOUT_S), "the engine has stopped, or is far too slow"
        engine.close()
        ((until_s, tokens_until),) = saturated
        rate = tokens_until / (until_s - began_s)
        return Load(rate, num_tokens / num_rounds, num_guesses / num_rounds, answers)

    def _computed(self, number: int, ids: list[int]) -> Prompt:
        num_pages = self._model.kv_layout.num_pages(len(ids) + self._max_new)
        lease = self.cache.allocate(num_pages)
        logits = torch.empty(0)
        for start in range(0, len(ids), _PREFILL_TOKENS):
            part = ids[start : start + _PREFILL_TOKENS]
            is_last = start + len(part) == len(ids)
            chunk = SequenceChunk(part, start, lease.pages, is_last, lease.window, defers_late=True)
            logits = self._model.forward([chunk], self.cache)
        snapshot = None
        if lease.window is not None:
            snapshot = self._model.save_window(self.cache, lease.window, len(ids))
        return Prompt(number, ids, lease, logits, snapshot)

    def _begin(self, prompt: Prompt, drafter: Drafter) -> Running:
        lease, num_tokens = prompt.lease, len(prompt.ids)
        if prompt.snapshot is not None:
            assert lease.window is not None
            self._model.load_window(self.cache, lease.window, num_tokens, prompt.snapshot)
        sampling = SamplingSpec(
            self._temperature, 1.0, 0, 0.0, prompt.number, self._max_new, frozenset(), False, None
        )
        key = GenerationKey(str(prompt.number), 0)
        spec = GenerationSpec(key, "", "", num_tokens, 0, sampling, "", 0, 0.0, 0.0)
        sequence = Running(
            spec,
            list(lease.pages),
            PageHold(KeptLease(lease.pages)),
            make_stop_rule(
                sampling,
                eos_token_ids=self._model.eos_token_ids,
                num_prompt_tokens=num_tokens,
                max_context_tokens=self._model.max_context_tokens,
            ),
            BlockChain(bytes(16), prompt.ids[num_tokens // 128 * 128 :]),
            window=lease.window,
            memory=drafter.open(np.array(prompt.ids)),
        )
        choose_tokens(prompt.logits, [sequence])
        return sequence


def _first_ids(sequence: Running) -> list[int]:
    return [int(token_id) for token_id in sequence.chunk.token_ids]
