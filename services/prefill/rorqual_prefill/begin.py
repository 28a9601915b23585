"""The stored prefix of a prompt: blocks into pages, the window behind them into its slot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from opentelemetry.trace import Tracer
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_policy.blocks import BLOCK_TOKENS
from rorqual_policy.provenance import Provenance, provenance_after
from rorqual_runtime.waiting import uninterrupted

from rorqual_prefill.export import KvExport
from rorqual_prefill.job import Job, num_reusable_blocks
from rorqual_prefill.prefix import PrefixHit, PrefixLoader
from rorqual_prefill.resume import PromptWindow, Resume, choose_resume
from rorqual_prefill.service import ActiveJob

Forget = Callable[[list[bytes], str], Awaitable[None]]
"""Tells kvmeta which blocks are not in the store, and why; never raises."""


class KeptWindows(Protocol):
    """Window states that some instance keeps for a while, by the key of the block they follow."""

    def is_known(self, key: bytes) -> bool: ...

    async def fetch(self, key: bytes) -> np.ndarray | None:
        """The snapshot; None when it has gone, and then it is not known any more."""
        ...

    def keep(self, key: bytes, snapshot: np.ndarray) -> None:
        """Keep it here and tell the others."""
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


class PrefixStage:
    """Finds what of a prompt need not be computed, and puts it in place."""

    def __init__(
        self,
        model: CausalModel,
        cache: PagedKvCache,
        loader: PrefixLoader,
        windows: KeptWindows,
        forget: Forget,
        tracer: Tracer,
    ) -> None:
        self._model = model
        self._cache = cache
        self._loader = loader
        self._windows = windows
        self._forget = forget
        self._tracer = tracer

    async def run(self, work: Work) -> Begin:
        """Stored blocks into the first pages; tells kvmeta what it was wrong about."""
        with self._tracer.start_as_current_span("prefill.fetch_kv") as span:
            hit = await self._load(work)
            resume = await self._settle(work, hit)
            span.set_attributes(
                {
                    "rorqual.kv.matched_blocks": work.job.num_matched_blocks,
                    "rorqual.kv.loaded_blocks": hit.num_blocks,
                    "rorqual.kv.replayed_tokens": resume.num_stored - resume.first_row,
                    "rorqual.kv.has_window": resume.has_window,
                }
            )
        await work.active.release_lease()
        if hit.missing:
            await self._forget(hit.missing, "missing")
        if hit.corrupt:
            await self._forget(hit.corrupt, "corrupt")
        return Begin(
            hit.num_blocks,
            resume.first_row,
            self._window(work, resume),
            self._provenance(work, resume),
        )

    def _provenance(self, work: Work, resume: Resume) -> Provenance:
        """A model that replays everything, or has no windows, computes exact blocks only. For
        others a block that kvmeta did not tell of may stand behind a replay."""
        context = self._model.max_context_tokens
        if work.slot is None or self._model.num_replayed(context) >= context:
            return Provenance.EXACT
        return provenance_after(
            num_exact_blocks=work.job.num_exact_blocks,
            num_used_blocks=resume.num_blocks,
            is_replayed=resume.first_row < resume.num_stored,
        )

    async def _load(self, work: Work) -> PrefixHit:
        """Blocks that can be of use; one that saves no computation is left where it is."""
        num_blocks = min(len(work.keys), num_reusable_blocks(len(work.token_ids)))
        if work.job.exact_only:
            num_blocks = min(num_blocks, work.job.num_exact_blocks)
        num_blocks = self._choose(work, num_blocks).num_blocks
        return await self._loader.load(
            work.keys[:num_blocks],
            work.pages[:num_blocks],
            num_promised=min(work.job.num_matched_blocks, num_blocks),
            on_page=work.export.copy_page,
        )

    def _choose(self, work: Work, num_blocks: int) -> Resume:
        def is_kept(blocks: int) -> bool:
            return work.slot is not None and self._windows.is_known(work.keys[blocks - 1])

        needs_all = work.job.exact_only and work.slot is not None
        num_replayed = (lambda stored: stored) if needs_all else self._model.num_replayed
        return choose_resume(num_blocks, num_replayed, is_kept)

    async def _settle(self, work: Work, hit: PrefixHit) -> Resume:
        """Where to begin with these blocks; a window that is needed there is in its slot then."""
        while (resume := self._choose(work, hit.num_blocks)).has_window:
            snapshot = await self._windows.fetch(work.keys[resume.num_blocks - 1])
            if snapshot is not None:
                await uninterrupted(asyncio.to_thread(self._put, work, resume, snapshot))
                break
        return resume

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
        )
