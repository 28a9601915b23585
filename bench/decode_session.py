"""A decode engine in one process, without services: prompts in, tokens and times out."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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
from rorqual_decode.stopping import StopRule
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models import CausalModel
from rorqual_engine.speculation import Drafter

_RUN_TIMEOUT_S = 600.0


class NoWriter:
    """Blocks go nowhere."""

    def offer(self, *_: Any) -> bool:
        return False


class TimedModel:
    """Notes when forwards run."""

    def __init__(self, model: CausalModel) -> None:
        self._model, self.vocab_size = model, model.vocab_size
        self.spans_s: list[tuple[float, float]] = []

    def forward(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> torch.Tensor:
        began_s = time.perf_counter()
        logits = self._model.forward(chunks, cache)
        self.spans_s.append((began_s, time.perf_counter()))
        return logits

    def save_window(self, cache: PagedKvCache, window: int, num_tokens: int) -> torch.Tensor:
        return self._model.save_window(cache, window, num_tokens)


@dataclass(frozen=True)
class Run:
    """One way through some prompts."""

    tokens_per_s: float
    """Of decode alone."""
    token_ids: list[list[int]]
    tokens_a_step: float
    """Mean of a sequence."""
    forward_s: float
    """Median of one."""
    gap_s: float
    """Median between two: what the next forward waits for."""

    @property
    def idle(self) -> float:
        """Share of the time without a forward."""
        return self.gap_s / (self.gap_s + self.forward_s)


class Session:
    """A model, its cache, and one way to run prompts to their ends."""

    def __init__(self, model: CausalModel, cache: PagedKvCache, temperature: float) -> None:
        self.model, self.cache, self._temperature = model, cache, temperature

    def run(
        self, prompts: Sequence[list[int]], num_new: int, drafter: Drafter, speculation: Speculation
    ) -> Run:
        """All prompts together, to their ends."""
        outputs: dict[GenerationKey, list[int]] = {}
        have_ended = threading.Event()
        num_rounds = 0

        def on_output(emissions: list[Emission]) -> None:
            nonlocal num_rounds
            num_rounds += len(emissions)
            for emission in emissions:
                outputs[emission.key] += emission.token_ids
            if all(len(ids) == num_new for ids in outputs.values()):
                have_ended.set()

        timed = TimedModel(self.model)
        with torch.inference_mode():
            sequences = [self._prefilled(n, ids, num_new, drafter) for n, ids in enumerate(prompts)]
        outputs.update((s.spec.key, [int(s.chunk.token_ids[0])]) for s in sequences)
        writer = cast(Any, NoWriter())
        engine = DecodeEngine(timed, self.cache, writer, on_output, speculation=speculation)
        for sequence in sequences:
            engine.add(sequence)
        began_s = time.perf_counter()
        engine.start()
        assert have_ended.wait(_RUN_TIMEOUT_S), "the engine has stopped, or is far too slow"
        took_s = time.perf_counter() - began_s
        engine.close()
        num_decoded = len(prompts) * (num_new - 1)
        return Run(
            num_decoded / took_s,
            list(outputs.values()),
            num_decoded / num_rounds,
            statistics.median(end - begin for begin, end in timed.spans_s),
            statistics.median(b[0] - a[1] for a, b in pairwise(timed.spans_s)),
        )

    def _prefilled(self, number: int, ids: list[int], num_new: int, drafter: Drafter) -> Running:
        lease = self.cache.allocate(self.model.kv_layout.num_pages(len(ids) + num_new))
        hold = PageHold(lease)
        sampling = SamplingSpec(
            self._temperature, 1.0, 0, 0.0, number, num_new, frozenset(), True, None
        )
        spec = GenerationSpec(
            GenerationKey(str(number), 0), "", "", len(ids), 0, sampling, "", 0, 0.0, 0.0
        )
        sequence = Running(
            spec,
            lease.pages,
            hold,
            StopRule(frozenset(), num_new),
            BlockChain(bytes(16), ids[len(ids) // 128 * 128 :]),
            window=lease.window,
            memory=drafter.open(np.array(ids)),
        )
        chunk = SequenceChunk(ids, 0, lease.pages, True, lease.window, defers_late=True)
        choose_tokens(self.model.forward([chunk], self.cache), [sequence])
        return sequence
