"""A whole engine in one process, without services: the baseline for benches and tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from rorqual_engine.batch import ImageRows, SequenceChunk
from rorqual_engine.errors import BadChunk, NoPages
from rorqual_engine.grammar import GrammarState, new_bitmask
from rorqual_engine.kv import PagedKvCache, PageLease
from rorqual_engine.models import CausalModel
from rorqual_engine.sampling import SamplingState, sample


@dataclass(frozen=True)
class GenerationParams:
    """What one prompt asks for."""

    max_new_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    ignore_eos: bool = False


@dataclass
class _Running:
    """One sequence that holds pages."""

    index: int
    tokens: list[int]
    params: GenerationParams
    lease: PageLease
    grammar: GrammarState | None = None
    images: ImageRows | None = None
    num_done: int = 0
    """Tokens whose KV is written."""
    output: list[int] = field(default_factory=list)

    def sampling(self) -> SamplingState:
        p = self.params
        return SamplingState(
            p.temperature, p.top_p, p.top_k, p.min_p, p.seed, position=len(self.tokens)
        )

    def images_within(self, start: int, end: int) -> ImageRows | None:
        """Those of a chunk's rows."""
        if self.images is None:
            return None
        is_inside = (self.images.rows >= start) & (self.images.rows < end)
        if not is_inside.any():
            return None
        values = self.images.values[torch.from_numpy(is_inside)]
        return ImageRows(self.images.rows[is_inside] - start, values)


_Waiting = tuple[int, Sequence[int], GenerationParams, GrammarState | None, ImageRows | None]


class BareEngine:
    """Continuous batching over one model and one cache; not thread safe."""

    def __init__(
        self,
        model: CausalModel,
        *,
        num_pages: int = 256,
        max_running: int = 32,
        chunk_tokens: int = 512,
    ) -> None:
        """chunk_tokens: rows of one step, prefill chunks and decode rows together."""
        self.model = model
        self.cache: PagedKvCache = model.new_cache(num_pages, num_windows=max_running)
        self.max_running, self.chunk_tokens = max_running, chunk_tokens

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: GenerationParams | Sequence[GenerationParams],
        grammars: Sequence[GrammarState | None] | None = None,
        images: Sequence[ImageRows | None] | None = None,
    ) -> list[list[int]]:
        """Output token ids of every prompt, an end-of-sequence token included.

        images: rows of each prompt, counted from its beginning.
        Raises: BadChunk for an empty or too long prompt, NoPages if one alone does not fit.
        """
        each = [params] * len(prompts) if isinstance(params, GenerationParams) else params
        given, shown = grammars or [None] * len(prompts), images or [None] * len(prompts)
        waiting = deque(zip(range(len(prompts)), prompts, each, given, shown, strict=True))
        running: list[_Running] = []
        outputs: list[list[int]] = [[] for _ in prompts]
        try:
            while waiting or running:
                self._admit(waiting, running)
                for finished in self._step(running):
                    outputs[finished.index] = finished.output
                    finished.lease.release()
                    running.remove(finished)
        finally:
            for sequence in running:
                sequence.lease.release()
        return outputs

    def _admit(self, waiting: deque[_Waiting], running: list[_Running]) -> None:
        """Moves prompts to running while their whole length fits the cache."""
        while waiting and len(running) < self.max_running:
            index, prompt, params, grammar, images = waiting[0]
            longest = len(prompt) + params.max_new_tokens
            if not prompt or longest > self.model.max_context_tokens:
                raise BadChunk(f"prompt {index} of {len(prompt)} tokens can't be run")
            try:
                lease = self.cache.allocate(self.model.kv_layout.num_pages(longest))
            except NoPages:
                if running:
                    return
                raise
            waiting.popleft()
            tokens = list(prompt)
            running.append(_Running(index, tokens, params, lease, grammar, images))

    def _step(self, running: list[_Running]) -> Iterator[_Running]:
        """One forward pass; returns the sequences that ended with it."""
        planned = list(self._plan(running))
        logits = self.model.forward([chunk for _, chunk in planned], self.cache)
        for sequence, chunk in planned:
            sequence.num_done += len(chunk.token_ids)
        sampled = [sequence for sequence, chunk in planned if chunk.wants_logits]
        if not sampled:
            return iter(())
        bitmask = self._bitmask(sampled)
        chosen = sample(logits, [sequence.sampling() for sequence in sampled], bitmask).ids
        return iter([s for s, t in zip(sampled, chosen.tolist(), strict=True) if self._take(s, t)])

    def _plan(self, running: list[_Running]) -> Iterator[tuple[_Running, SequenceChunk]]:
        """Decode rows first, then prefill chunks in order of arrival, up to chunk_tokens."""
        budget = self.chunk_tokens
        for sequence in sorted(running, key=lambda s: not s.output):
            count = min(len(sequence.tokens) - sequence.num_done, budget)
            if count <= 0:
                continue
            budget -= count
            end = sequence.num_done + count
            tokens = sequence.tokens[sequence.num_done : end]
            is_last = end == len(sequence.tokens)
            lease = sequence.lease
            yield (
                sequence,
                SequenceChunk(
                    tokens,
                    sequence.num_done,
                    lease.pages,
                    is_last,
                    window=lease.window,
                    defers_late=not sequence.output,
                    embeddings=sequence.images_within(sequence.num_done, end),
                ),
            )

    def _bitmask(self, sampled: Sequence[_Running]) -> torch.Tensor | None:
        if not any(sequence.grammar for sequence in sampled):
            return None
        bitmask = new_bitmask(len(sampled), self.model.vocab_size)
        for row, sequence in enumerate(sampled):
            if sequence.grammar is not None:
                sequence.grammar.fill_mask(bitmask, row)
        return bitmask

    def _take(self, sequence: _Running, token: int) -> bool:
        """Appends a sampled token; True when the sequence has ended."""
        sequence.tokens.append(token)
        sequence.output.append(token)
        if sequence.grammar is not None:
            sequence.grammar.accept(token)
        at_end = token in self.model.eos_token_ids and not sequence.params.ignore_eos
        return at_end or len(sequence.output) >= sequence.params.max_new_tokens
