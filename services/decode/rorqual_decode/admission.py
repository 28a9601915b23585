"""Taking a prompt over: pages, tickets, grammar and the first token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from rorqual_engine.errors import GrammarMismatch, NoPages
from rorqual_engine.grammar import GrammarState
from rorqual_engine.kv import PagedKvCache, PageLease
from rorqual_engine.logit_rules import LogitEditor, make_editor
from rorqual_engine.models.base import CausalModel
from rorqual_engine.speculation import Memory
from rorqual_policy.blocks import BLOCK_TOKENS, block_keys, content_key, root_key
from rorqual_policy.provenance import BlockOrigin
from rorqual_runtime.errors import (
    ContextTooLong,
    Corrupt,
    InvalidRequest,
    NoCapacity,
    StaleTicket,
    Unavailable,
    Unsupported,
)
from rorqual_runtime.payload import get_token_ids
from rorqual_runtime.prompt_work import over_prompt
from rorqual_runtime.tensors import TensorPlane

from rorqual_decode.block_chain import BlockChain
from rorqual_decode.block_writer import BlockTraits
from rorqual_decode.convert import HandoverOffer
from rorqual_decode.generation import Emission, FinishReason
from rorqual_decode.page_fetch import PageFetcher, prompt_first_order
from rorqual_decode.page_hold import PageHold
from rorqual_decode.running import Running
from rorqual_decode.sampling import choose_tokens, is_cheap_draw
from rorqual_decode.stopping import StopRule, make_stop_rule
from rorqual_decode.window_fetch import WindowFetcher

T = TypeVar("T")

ReadGrammar = Callable[[bytes], GrammarState]
Recompile = Callable[[HandoverOffer], Awaitable[Any]]
"""Asks for a fresh ticket of an offer's grammar."""
OpenMemory = Callable[[np.ndarray], Memory]


class PromptBlock(NamedTuple):
    """A full block of a prompt, in one of its pages."""

    key: bytes
    page: int
    traits: BlockTraits


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence that has its first token, and what of its prompt is worth storing."""

    sequence: Running
    first: Emission
    """Nothing, where the last token of an earlier run has yet to run."""
    prompt_blocks: list[PromptBlock]
    """The full blocks that are not stored yet."""
    prompt_ids: np.ndarray
    output_ids: list[int]
    """Of earlier runs."""


class Reserved(NamedTuple):
    """Memory of a sequence: prompt and the beginning of its answer."""

    hold: PageHold
    pages: list[int]
    """The prompt's come first."""
    window: int | None


class Admitter:
    """Turns offers into running sequences, or refuses them and keeps nothing.

    Pages for the answer are reserved some way ahead; that there are enough for all is checked.
    """

    def __init__(
        self,
        model: CausalModel,
        cache: PagedKvCache,
        tensors: TensorPlane,
        *,
        read_grammar: ReadGrammar,
        recompile: Recompile,
        open_memory: OpenMemory = lambda prompt_ids: Memory(),
        growth_tokens: int,
    ) -> None:
        """open_memory: the drafter's, see `Drafter.open`. growth_tokens: output for which pages are
        reserved; more come as it grows."""
        self._model = model
        self._cache = cache
        self._tensors = tensors
        self._fetcher = PageFetcher(tensors, cache)
        self._windows = WindowFetcher(tensors, cache, model)
        self._read_grammar = read_grammar
        self._recompile = recompile
        self._open_memory = open_memory
        self._growth_tokens = growth_tokens
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="first-token")

    def close(self) -> None:
        """Stop the worker thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    async def admit(self, offer: HandoverOffer, timeout_s: float) -> Admitted:
        """Reserve, fetch, verify and sample the first token.

        Raises: NoCapacity, Unsupported, InvalidRequest, ContextTooLong, StaleTicket, Corrupt,
            Unavailable, DeadlineExceeded; nothing is held then.
        """
        self._check(offer)
        reserved = self._reserve(offer)
        hold = reserved.hold
        try:
            token_ids = await get_token_ids(
                self._tensors, offer.prompt, offer.spec.num_tokens, timeout_s=timeout_s
            )
            output_ids: list[int] = token_ids[offer.spec.num_prompt_tokens :].tolist()
            sequence, blocks = await self._prepare(offer, reserved, token_ids, timeout_s)
            first = await self._go_on(sequence, offer, output_ids, timeout_s)
        except BaseException:
            hold.release()
            raise
        prompt_ids = token_ids[: offer.spec.num_prompt_tokens]
        return Admitted(sequence, first, blocks, prompt_ids, output_ids)

    def _check(self, offer: HandoverOffer) -> None:
        if offer.model_fingerprint != self._model.fingerprint:
            raise Unsupported(
                f"KV of model {offer.model_fingerprint} offered, this instance runs "
                f"{self._model.fingerprint}"
            )
        if offer.spec.num_tokens > self._model.max_context_tokens:
            raise ContextTooLong(offer.spec.num_tokens, self._model.max_context_tokens)
        for token_id, _ in offer.spec.sampling.rules.logit_bias:
            if token_id >= self._model.vocab_size:
                raise InvalidRequest(f"token {token_id} is not in the vocabulary", "logit_bias")

    def _reserve(self, offer: HandoverOffer) -> Reserved:
        num_pages = self.num_pages_for(offer)
        if num_pages > self._cache.num_pages:
            raise NoCapacity(f"{num_pages} KV pages needed, there are {self._cache.num_pages}")
        num_first = self._cache.layout.num_pages(offer.num_kv_tokens + self._growth_tokens)
        try:
            lease: PageLease = self._cache.allocate(min(num_pages, num_first))
        except NoPages as err:
            if not self._cache.can_open:
                raise NoCapacity("no window slot is free") from None
            raise NoCapacity(f"{err.wanted} KV pages wanted, {err.free} free") from None
        pages = prompt_first_order(lease.pages, self._cache.layout.num_pages(offer.num_kv_tokens))
        return Reserved(PageHold(lease), pages, lease.window)

    def num_pages_for(self, offer: HandoverOffer) -> int:
        """Pages of prompt and longest answer; the last token's KV is never needed."""
        stop = self._stop_rule(offer)
        num_tokens = offer.spec.num_prompt_tokens + stop.max_output_tokens - 1
        return self._cache.layout.num_pages(max(num_tokens, offer.num_kv_tokens))

    def _stop_rule(self, offer: HandoverOffer) -> StopRule:
        return make_stop_rule(
            offer.spec.sampling,
            eos_token_ids=self._model.eos_token_ids,
            num_prompt_tokens=offer.spec.num_prompt_tokens,
            max_context_tokens=self._model.max_context_tokens,
        )

    async def _prepare(
        self, offer: HandoverOffer, reserved: Reserved, token_ids: np.ndarray, timeout_s: float
    ) -> tuple[Running, list[PromptBlock]]:
        """The sequence with its KV in place."""
        spec, pages, num_kv = offer.spec, reserved.pages, offer.num_kv_tokens
        work = partial(self._verified_keys, offer, token_ids[:num_kv])
        keys = await over_prompt(num_kv, work)
        grammar = await self._grammar(offer, timeout_s)
        num_kv_pages = self._cache.layout.num_pages(num_kv)
        await self._fetcher.fetch(offer.kv_pages, pages[:num_kv_pages], timeout_s=timeout_s)
        if reserved.window is not None:
            await self._windows.fetch(offer.window, reserved.window, num_kv, timeout_s=timeout_s)
        stop = self._stop_rule(offer)
        root = root_key(fingerprint=self._model.fingerprint, namespace=spec.cache_namespace)
        num_keyed = len(keys) * BLOCK_TOKENS
        sequence = Running(
            spec=spec,
            pages=pages,
            hold=reserved.hold,
            stop=stop,
            chain=BlockChain(
                keys[-1] if keys else root,
                token_ids[num_keyed:num_kv].tolist(),
                [image.seen_from(num_keyed) for image in offer.images if image.end > num_keyed],
            ),
            grammar=grammar,
            editor=self._editor(offer, token_ids[: spec.num_prompt_tokens], stop),
            window=reserved.window,
            memory=self._open_memory(token_ids),
        )
        fresh = range(min(offer.num_stored_blocks, len(keys)), len(keys))
        return sequence, [
            PromptBlock(keys[i], pages[i], self._traits(offer, token_ids, i)) for i in fresh
        ]

    def _traits(self, offer: HandoverOffer, token_ids: np.ndarray, position: int) -> BlockTraits:
        """Of one of its full blocks."""
        content, origin = b"", BlockOrigin.PROMPT
        if (position + 1) * BLOCK_TOKENS > offer.spec.num_prompt_tokens:
            origin = BlockOrigin.CONTINUATION
        elif position == 0:
            content = content_key(
                token_ids,  # type: ignore[arg-type]
                fingerprint=self._model.fingerprint,
                images=offer.images,
            )
        return BlockTraits(
            offer.spec.traffic_class,
            origin,
            offer.spec.provenance,
            offer.spec.tenant,
            position,
            offer.spec.cache_ttl_s,
            content,
        )

    def _editor(
        self, offer: HandoverOffer, token_ids: np.ndarray, stop: StopRule
    ) -> LogitEditor | None:
        end_ids = [token for token in stop.stop_ids if token < self._model.vocab_size]
        return make_editor(offer.spec.sampling.rules, token_ids, end_ids)  # type: ignore[arg-type]

    def _verified_keys(self, offer: HandoverOffer, token_ids: np.ndarray) -> list[bytes]:
        keys = block_keys(
            token_ids,  # type: ignore[arg-type]
            fingerprint=self._model.fingerprint,
            namespace=offer.spec.cache_namespace,
            images=offer.images,
        )
        if offer.last_block_key != (keys[-1] if keys else b""):
            raise Corrupt("the block key that came with the prompt is not that of its tokens")
        return keys

    async def _grammar(self, offer: HandoverOffer, timeout_s: float) -> GrammarState | None:
        if offer.compiled_grammar is None:
            return None
        try:
            data = await self._tensors.fetch(offer.compiled_grammar, timeout_s=timeout_s)
        except (StaleTicket, Unavailable):  # or whoever compiled it is gone
            ticket = await self._recompile(offer)
            data = await self._tensors.fetch(ticket, timeout_s=timeout_s)
        try:
            return await self._in_thread(self._read_grammar, data.tobytes())
        except GrammarMismatch as err:
            raise Unsupported(str(err)) from err

    async def _go_on(
        self, sequence: Running, offer: HandoverOffer, output_ids: list[int], timeout_s: float
    ) -> Emission:
        """Behind the output of earlier runs: the first token, where its logits came along."""
        if output_ids:
            has_last = offer.first_logits is not None
            replay = partial(sequence.go_on_behind, output_ids, has_last=has_last)
            finish = await self._in_thread(replay)
            if finish is FinishReason.ERROR:
                raise Corrupt("the output so far is against its grammar")
            if finish is not None or not has_last:
                return Emission(sequence.spec.key, (), (), finish)
        logits = await self._tensors.fetch(offer.first_logits, timeout_s=timeout_s)
        return await self._first_token(sequence, logits)

    async def _first_token(self, sequence: Running, logits: np.ndarray) -> Emission:
        if logits.nbytes != 4 * self._model.vocab_size:
            raise Corrupt(
                f"{logits.nbytes} bytes of logits came for {self._model.vocab_size} tokens"
            )
        if is_cheap_draw(sequence.spec.sampling, has_grammar=sequence.grammar is not None):
            return _sample_first(sequence, logits)
        return await self._in_thread(_sample_first, sequence, logits)

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)


def _sample_first(sequence: Running, logits: np.ndarray) -> Emission:
    with torch.inference_mode():
        row = torch.from_numpy(logits.view(np.float32)).unsqueeze(0)
        (emission,) = choose_tokens(row, [sequence])
    return emission
