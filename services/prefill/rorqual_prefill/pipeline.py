"""What a job goes through here: tokens, stored prefix, computation, handover."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from opentelemetry.trace import Tracer
from rorqual_engine.models.base import CausalModel
from rorqual_policy.blocks import BLOCK_TOKENS, block_keys
from rorqual_runtime.clock import Clock
from rorqual_runtime.errors import ContextTooLong, InvalidRequest
from rorqual_runtime.payload import get_token_ids, put_payload
from rorqual_runtime.tensors import TensorPlane

from rorqual_prefill import convert
from rorqual_prefill.compute import PrefillEngine, Prompt
from rorqual_prefill.export import KvExport, open_export
from rorqual_prefill.fleet import BusDecodeFleet
from rorqual_prefill.handover import Handover
from rorqual_prefill.image_rows import ImageFetcher, PromptImages
from rorqual_prefill.job import Job, num_pages_for, num_reusable_blocks
from rorqual_prefill.page_io import PageIo
from rorqual_prefill.pages import PageGate
from rorqual_prefill.prefix import PrefixHit, PrefixLoader
from rorqual_prefill.service import ActiveJob

_ANSWER_S = 0.1
"""Kept of the deadline, so that the client hears why nobody took its prompt."""

Forget = Callable[[list[bytes], str], Awaitable[None]]
"""Tells kvmeta which blocks are not in the store, and why; never raises."""


@dataclass(frozen=True, slots=True)
class Work:
    """A job with what it holds here."""

    active: ActiveJob
    token_ids: np.ndarray
    keys: list[bytes]
    pages: list[int]
    export: KvExport
    started_unix_s: float

    @property
    def job(self) -> Job:
        """The job."""
        return self.active.job


class PrefillPipeline:
    """Computes jobs and hands them over. Everything a job holds is freed on every way out."""

    def __init__(
        self,
        *,
        model: CausalModel,
        page_io: PageIo,
        engine: PrefillEngine,
        gate: PageGate,
        loader: PrefixLoader,
        fleet: BusDecodeFleet,
        images: ImageFetcher,
        tensors: TensorPlane,
        forget: Forget,
        on_progress: Callable[[], None],
        arena_bytes: int,
        clock: Clock,
        tracer: Tracer,
    ) -> None:
        self._model = model
        self._page_io = page_io
        self._engine = engine
        self._gate = gate
        self._loader = loader
        self._fleet = fleet
        self._images = images
        self._tensors = tensors
        self._forget = forget
        self._on_progress = on_progress
        self._arena_bytes = arena_bytes
        self._clock = clock
        self._tracer = tracer

    async def serve(self, active: ActiveJob) -> None:
        """Returns once a decode instance has the job. Raises: ServingError."""
        job, left_s = active.job, active.left_s
        self._note_queued(job)
        started_unix_s = self._clock.now_unix_s()
        token_ids = await self._resolve(job)
        keys = block_keys(
            token_ids,  # type: ignore[arg-type]
            fingerprint=self._model.fingerprint,
            namespace=job.cache_namespace,
            images=job.image_spans,
        )
        async with (
            self._gate.lease(num_pages_for(len(token_ids)), left_s()) as lease,
            open_export(
                self._tensors,
                lease.pages,
                read_page=self._page_io.read,
                page_bytes=self._model.kv_layout.page_bytes,
                capacity_bytes=self._arena_bytes,
                timeout_s=left_s(),
            ) as export,
        ):
            work = Work(active, token_ids, keys, lease.pages, export, started_unix_s)
            hit = await self._load_prefix(work)
            await self._compute_and_hand_over(work, hit)

    def _note_queued(self, job: Job) -> None:
        """A span for the time the job spent on the queue."""
        now_ns = int(self._clock.now_unix_s() * 1e9)
        begun_ns = int(job.submitted_unix_s * 1e9) or now_ns
        span = self._tracer.start_span("prefill.queue", start_time=min(begun_ns, now_ns))
        span.set_attribute("rorqual.request_id", job.key.request_id)
        span.end(now_ns)

    async def _resolve(self, job: Job) -> np.ndarray:
        """The prompt's token ids, checked against the model."""
        if job.num_prompt_tokens > self._model.max_context_tokens:
            raise ContextTooLong(job.num_prompt_tokens, self._model.max_context_tokens)
        if job.num_prompt_tokens == 0:
            raise InvalidRequest("the prompt is empty")
        token_ids = await get_token_ids(self._tensors, job.prompt, job.num_prompt_tokens)
        if int(token_ids.min()) < 0 or int(token_ids.max()) >= self._model.vocab_size:
            raise InvalidRequest(f"a token id is outside 0..{self._model.vocab_size - 1}")
        return token_ids

    async def _load_prefix(self, work: Work) -> PrefixHit:
        """Stored blocks into the first pages; tells kvmeta what it was wrong about."""
        job = work.job
        num_blocks = min(len(work.keys), num_reusable_blocks(len(work.token_ids)))
        with self._tracer.start_as_current_span("prefill.fetch_kv") as span:
            hit = await self._loader.load(
                work.keys[:num_blocks],
                work.pages[:num_blocks],
                num_promised=min(job.num_matched_blocks, num_blocks),
                on_page=work.export.copy_page,
            )
            span.set_attribute("rorqual.kv.matched_blocks", job.num_matched_blocks)
            span.set_attribute("rorqual.kv.loaded_blocks", hit.num_blocks)
        await work.active.release_lease()
        if hit.missing:
            await self._forget(hit.missing, "missing")
        if hit.corrupt:
            await self._forget(hit.corrupt, "corrupt")
        return hit

    async def _compute_and_hand_over(self, work: Work, hit: PrefixHit) -> None:
        images = await self._images.fetch(work.job, hit.num_blocks * BLOCK_TOKENS)
        prompt = self._prompt(work, hit, images)
        async with self._early_placement(work.job, prompt.last_chunk_started) as placement:
            with self._tracer.start_as_current_span("prefill.compute") as span:
                span.set_attributes(
                    {
                        "gen_ai.request.model": work.job.model,
                        "gen_ai.usage.input_tokens": len(work.token_ids),
                        "gen_ai.usage.cached_tokens": prompt.num_done,
                    }
                )
                async with self._engine.computing(prompt):
                    logits = await prompt.logits
            await self._hand_over(work, hit, logits, placement)

    def _prompt(self, work: Work, hit: PrefixHit, images: PromptImages | None) -> Prompt:
        loop = asyncio.get_running_loop()

        def on_progress(num_remaining: int) -> None:
            work.active.num_queued_tokens = num_remaining
            self._on_progress()

        num_done = hit.num_blocks * BLOCK_TOKENS
        on_progress(len(work.token_ids) - num_done)
        return Prompt(
            prompt_id=str(work.job.key),
            token_ids=work.token_ids,
            pages=work.pages,
            num_done=num_done,
            arrival_s=work.job.submitted_unix_s or work.started_unix_s,
            on_page=work.export.copy_page,
            on_progress=on_progress,
            last_chunk_started=loop.create_future(),
            logits=loop.create_future(),
            images=images,
        )

    @contextlib.asynccontextmanager
    async def _early_placement(
        self, job: Job, last_chunk_started: asyncio.Future[None]
    ) -> AsyncIterator[asyncio.Task[str]]:
        """Asks for a decode instance while the last chunk runs."""

        async def place() -> str:
            await last_chunk_started
            return await self._fleet.place(job, ())

        task = asyncio.get_running_loop().create_task(place())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _hand_over(
        self, work: Work, hit: PrefixHit, logits: np.ndarray, placement: Awaitable[str]
    ) -> None:
        job = work.job
        with self._tracer.start_as_current_span("prefill.handover") as span:
            parts = await self._parts(work, hit, logits)
            handover = Handover(
                job,
                self._fleet.offering(lambda: convert.handover_to_wire(job, parts)),
                work.export.keep_alive,
            )
            try:
                decode_id = await handover.run(placement, work.active.left_s() - _ANSWER_S)
                span.set_attribute("rorqual.decode_id", decode_id)
            finally:
                span.set_attribute("rorqual.handover.tries", handover.num_tries)

    async def _parts(self, work: Work, hit: PrefixHit, logits: np.ndarray) -> convert.HandoverParts:
        """Everything the offer refers to, published."""
        prompt: Any = await put_payload(self._tensors, convert.tokens_to_wire(work.token_ids))
        if prompt.HasField("ticket"):
            work.export.adopt(prompt.ticket)
        return convert.HandoverParts(
            last_block_key=work.keys[-1] if work.keys else b"",
            num_stored_blocks=hit.num_blocks,
            num_cached_tokens=hit.num_blocks * BLOCK_TOKENS,
            prompt=prompt,
            kv_pages=work.export.seal(),
            first_logits=await work.export.publish(logits),
            model_fingerprint=self._model.fingerprint,
        )
