"""The stored prefix of a prompt: blocks fetched and swapped in, the window behind them as well."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from opentelemetry.trace import Tracer
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_policy.blocks import BLOCK_TOKENS
from rorqual_policy.provenance import Provenance, provenance_after
from rorqual_runtime.kv_export import KvExport
from rorqual_runtime.waiting import uninterrupted
from rorqual_runtime.windows import KeptWindow, WindowPlace

from rorqual_prefill.fetch import BlockFetcher, Fetch, Promise
from rorqual_prefill.hit_counts import HitCounts
from rorqual_prefill.job import Job, num_reusable_blocks
from rorqual_prefill.read_line import Place
from rorqual_prefill.resume import PromptWindow, Resume, choose_resume
from rorqual_prefill.service import ActiveJob
from rorqual_prefill.swap_in import SwapIn

Forget = Callable[[list[bytes], str], Awaitable[None]]
"""Tells kvmeta which blocks are not in the store, and why; never raises."""


class KeptWindows(Protocol):
    """Window states that some instance keeps for a while, by the key of the block they follow."""

    def learn(self, key: bytes, place: WindowPlace) -> None:
        """Somebody is said to keep this one."""
        ...

    def is_known(self, key: bytes, *, exact_only: bool) -> bool: ...

    async def fetch(self, key: bytes) -> KeptWindow | None:
        """The window state; None when it has gone, and then it is not known any more."""
        ...

    def keep(self, key: bytes, window: KeptWindow) -> None:
        """Keep it here and tell kvmeta."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """A job with what it holds here."""

    active: ActiveJob
    token_ids: np.ndarray
    keys: list[bytes]
    pages: list[int]
    slot: int | None
    """Window slot; None where the model has no windows."""
    export: KvExport
    fetch: Fetch
    started_unix_s: float

    @property
    def job(self) -> Job:
        """The job."""
        return self.active.job


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a prompt's computation begins: everything before is in its pages and its slot."""

    num_stored_blocks: int
    """Blocks that the store was seen to hold."""
    first_row: int
    window: PromptWindow | None
    provenance: Provenance
    """Of what is computed from here on."""
    miss_reason: str
    """Why computation begins no later; empty where nothing was missed."""


class PrefixStage:
    """Finds what of a prompt need not be computed, and puts it in place."""

    def __init__(
        self,
        model: CausalModel,
        cache: PagedKvCache,
        fetcher: BlockFetcher,
        swap_in: SwapIn,
        windows: KeptWindows,
        forget: Forget,
        urgency_s: Callable[[ActiveJob], float],
        counts: HitCounts,
        tracer: Tracer,
    ) -> None:
        """urgency_s: whose blocks are read first: the smaller ones."""
        self._model = model
        self._cache = cache
        self._fetcher = fetcher
        self._swap_in = swap_in
        self._windows = windows
        self._forget = forget
        self._urgency_s = urgency_s
        self._counts = counts
        self._tracer = tracer

    def fetching(
        self, active: ActiveJob, keys: list[bytes], num_tokens: int
    ) -> AbstractAsyncContextManager[Fetch]:
        """Read the blocks that can be of use, before the prompt has pages; one that saves no
        computation is left where it is."""
        job = active.job
        for number, window in job.windows:
            if 0 < number <= len(keys):
                self._windows.learn(keys[number - 1], window)
        num_blocks = min(len(keys), num_reusable_blocks(self._last_begin(job, num_tokens)))
        if job.exact_only:
            num_blocks = min(num_blocks, job.num_exact_blocks)
        num_blocks = self._choose(job, keys, num_blocks).num_blocks
        promise = Promise(min(job.num_matched_blocks, num_blocks), job.num_exact_blocks)
        place = Place(self._urgency_s(active))
        return self._fetcher.fetching(keys[:num_blocks], promise, place, num_tokens)

    def _last_begin(self, job: Job, num_tokens: int) -> int:
        """A model with windows begins in the prompt, wherever its answer so far ends: windows that
        are kept may lack the layers which an answer's rows need."""
        return num_tokens - job.num_output_tokens if self._cache.num_windows else num_tokens

    async def run(self, work: Work) -> Begin:
        """Stored blocks into the first pages; tells kvmeta what it was wrong about."""
        began_s = time.perf_counter()
        with self._tracer.start_as_current_span("prefill.swap_in") as span:
            num_blocks = await self._swap_all_in(work)
            resume, window = await self._settle(work, num_blocks)
            self._count(resume, time.perf_counter() - began_s)
            miss_reason = why_no_later(work, num_blocks, resume.first_row)
            span.set_attributes(
                {
                    "rorqual.kv.matched_blocks": work.job.num_matched_blocks,
                    "rorqual.kv.loaded_blocks": num_blocks,
                    "rorqual.kv.replayed_tokens": resume.num_stored - resume.first_row,
                    "rorqual.kv.has_window": resume.has_window,
                    "rorqual.kv.miss_reason": miss_reason,
                }
            )
        await work.active.release_lease()
        await self._tell(work.fetch)
        return Begin(
            num_blocks,
            resume.first_row,
            self._window(work, resume),
            self._provenance(work, resume, window),
            miss_reason,
        )

    async def _tell(self, fetch: Fetch) -> None:
        """kvmeta, what it was wrong about."""
        self._counts.missing_blocks_total += len(fetch.missing)
        self._counts.corrupt_blocks_total += len(fetch.corrupt)
        if fetch.missing:
            await self._forget(fetch.missing, "missing")
        if fetch.corrupt:
            await self._forget(fetch.corrupt, "corrupt")

    def _count(self, resume: Resume, took_s: float) -> None:
        """Hits, and apart from them what their prompts waited for them: one says nothing of the
        other."""
        self._counts.prompts_total += 1
        if resume.first_row:
            self._counts.hits_total += 1
            self._counts.hit_blocks_total += resume.first_row // BLOCK_TOKENS
            self._counts.hit_wait_s_total += took_s

    async def _swap_all_in(self, work: Work) -> int:
        """Each group as it comes; how many blocks are in their pages then."""
        fetch = work.fetch
        self._fetcher.note_pages(fetch)
        num_blocks = 0
        while (group := await self._fetcher.next(fetch)) is not None:
            try:
                await self._swap_in.put(group, work.pages, work.export)
            finally:
                self._fetcher.release(group)
            num_blocks += len(group.blocks)
        return num_blocks

    def _provenance(self, work: Work, resume: Resume, window: KeptWindow | None) -> Provenance:
        """A model that replays everything, or has no windows, computes exact blocks only. For
        others a block that kvmeta did not tell of may stand behind a replay."""
        context = self._model.max_context_tokens
        if work.slot is None or self._model.num_replayed(context) >= context:
            return Provenance.EXACT
        return provenance_after(
            num_exact_blocks=work.job.num_exact_blocks,
            num_used_blocks=resume.num_blocks,
            is_replayed=resume.first_row < resume.num_stored
            or (window is not None and window.is_replayed),
        )

    def _choose(self, job: Job, keys: list[bytes], num_blocks: int) -> Resume:
        has_windows = self._cache.num_windows > 0

        def is_kept(blocks: int) -> bool:
            return has_windows and self._windows.is_known(
                keys[blocks - 1], exact_only=job.exact_only
            )

        needs_all = job.exact_only and has_windows
        num_replayed = (lambda stored: stored) if needs_all else self._model.num_replayed
        return choose_resume(num_blocks, num_replayed, is_kept)

    async def _settle(self, work: Work, num_blocks: int) -> tuple[Resume, KeptWindow | None]:
        """Where to begin with these blocks; a window that is needed there is in its slot then."""
        while (resume := self._choose(work.job, work.keys, num_blocks)).has_window:
            window = await self._windows.fetch(work.keys[resume.num_blocks - 1])
            if window is not None and not (work.job.exact_only and window.is_replayed):
                await uninterrupted(asyncio.to_thread(self._put, work, resume, window.snapshot))
                return resume, window
        return resume, None

    def _put(self, work: Work, resume: Resume, snapshot: np.ndarray) -> None:
        assert work.slot is not None
        self._model.load_window(
            self._cache, work.slot, resume.first_row, torch.from_numpy(snapshot)
        )

    def _window(self, work: Work, resume: Resume) -> PromptWindow | None:
        if work.slot is None:
            return None
        floor = 0 if resume.has_window else resume.first_row
        keep_at = len(work.keys) * BLOCK_TOKENS
        is_kept_already = keep_at <= resume.first_row
        first_id = max(0, floor - self._model.num_previous_ids)
        return PromptWindow(
            work.slot,
            floor=floor,
            num_stored=resume.num_stored,
            previous_ids=tuple(work.token_ids[first_id:floor].tolist()),
            keep_at=0 if is_kept_already else keep_at,
            answer_at=work.job.answer_at,
        )


def why_no_later(work: Work, num_loaded: int, first_row: int) -> str:
    """Why computation begins no later: less came than kvmeta promised, it promised no more, or
    there was no window behind what came; empty where nothing was missed."""
    job, fetch = work.job, work.fetch
    num_wanted = min(len(work.keys), num_reusable_blocks(len(work.token_ids)))
    if first_row >= num_wanted * BLOCK_TOKENS:
        return ""
    if fetch.corrupt:
        return "corrupt"
    if fetch.missing:
        return "evicted"
    if num_loaded < fetch.promise.num_blocks:
        return "not_fetched"
    if job.exact_only and job.num_exact_blocks < job.num_matched_blocks:
        return "replay_boundary"
    if num_loaded < num_wanted and job.miss_reason:
        return job.miss_reason
    return "no_window" if work.slot is not None else ""
