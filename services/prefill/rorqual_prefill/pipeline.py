"""What a job goes through here: tokens, stored prefix, computation, handover."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from opentelemetry.trace import Tracer
from rorqual_engine.models.base import CausalModel
from rorqual_policy.blocks import BLOCK_TOKENS, block_keys
from rorqual_policy.provenance import Provenance
from rorqual_runtime.cancelled import Phase
from rorqual_runtime.clock import Clock
from rorqual_runtime.errors import ContextTooLong, InvalidRequest, ServingError
from rorqual_runtime.handover import Handover
from rorqual_runtime.kv_export import LEASE_S, once_there_is_room, open_export
from rorqual_runtime.payload import get_token_ids, put_payload
from rorqual_runtime.prompt_work import over_prompt
from rorqual_runtime.tensors import TensorPlane
from rorqual_runtime.windows import KeptWindow

from rorqual_prefill import convert
from rorqual_prefill.begin import Begin, KeptWindows, PrefixStage, Work
from rorqual_prefill.compute import PrefillEngine
from rorqual_prefill.fleet import BusDecodeFleet
from rorqual_prefill.image_rows import ImageFetcher, PromptImages
from rorqual_prefill.job import Job, num_pages_for
from rorqual_prefill.page_io import PageIo
from rorqual_prefill.pages import PageGate
from rorqual_prefill.prompt import Prompt
from rorqual_prefill.service import ActiveJob

_ANSWER_S = 0.1
"""Kept of the deadline, so that the client hears why nobody took its prompt."""


class PrefillPipeline:
    """Computes jobs and hands them over. Everything a job holds is freed on every way out."""

    def __init__(
        self,
        *,
        model: CausalModel,
        page_io: PageIo,
        engine: PrefillEngine,
        gate: PageGate,
        prefix: PrefixStage,
        fleet: BusDecodeFleet,
        images: ImageFetcher,
        windows: KeptWindows,
        tensors: TensorPlane,
        on_progress: Callable[[], None],
        arena_bytes: int,
        clock: Clock,
        tracer: Tracer,
    ) -> None:
        self._model = model
        self._snapshot_bytes = model.kv_layout.snapshot_bytes
        self._page_io = page_io
        self._engine = engine
        self._gate = gate
        self._prefix = prefix
        self._fleet = fleet
        self._images = images
        self._windows = windows
        self._tensors = tensors
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
        keys = await over_prompt(len(token_ids), partial(self._keys, job, token_ids))
        async with (
            self._prefix.fetching(active, keys, len(token_ids)) as fetch,
            self._gate.lease(num_pages_for(len(token_ids)), left_s()) as lease,
            open_export(
                self._tensors,
                lease.pages,
                read_page=self._page_io.read,
                page_bytes=self._model.kv_layout.page_bytes,
                window_bytes=self._snapshot_bytes,
                capacity_bytes=self._arena_bytes,
                timeout_s=left_s(),
            ) as export,
        ):
            work = Work(
                active,
                token_ids,
                keys,
                lease.pages,
                lease.window,
                export,
                fetch,
                started_unix_s,
            )
            await self._compute_and_hand_over(work, await self._prefix.run(work))

    def _keys(self, job: Job, token_ids: np.ndarray) -> list[bytes]:
        return block_keys(
            token_ids,  # type: ignore[arg-type]
            fingerprint=self._model.fingerprint,
            namespace=job.cache_namespace,
            images=job.image_spans,
        )

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

    async def _compute_and_hand_over(self, work: Work, begin: Begin) -> None:
        work.active.phase = Phase.PREFILL
        left_s = work.active.left_s()
        async with self._images.holding(work.job, begin.first_row, left_s) as images:
            prompt = self._prompt(work, begin, images)
            async with self._early_placement(work.job, prompt.last_chunk_started) as placement:
                logits = await self._compute(work, begin, prompt, placement)
                if prompt.window and prompt.window.kept is not None:
                    self._keep(work, begin, prompt.window.kept)
                await self._hand_over(work, begin, logits, placement)

    def _keep(self, work: Work, begin: Begin, snapshot: np.ndarray) -> None:
        """The window behind the prompt's last block, for who goes on from there."""
        saved_tokens = self._model.num_replayed(len(work.keys) * BLOCK_TOKENS)
        is_replayed = begin.provenance is Provenance.REPLAYED
        self._windows.keep(work.keys[-1], KeptWindow(snapshot, is_replayed, saved_tokens))

    async def _announce(
        self, work: Work, begin: Begin, logits: np.ndarray, placement: asyncio.Task[str]
    ) -> None:
        """The first token at once, where it is certain that decode will draw the same.

        A job that is delivered again must draw it as well, so the model's bits must not depend on
        chance: only in bf16 on a CPU, and not with windows, which may be gone then and be replayed.
        If nobody takes the prompt over after all, the client's begun stream ends with the error.
        Source: 2 ms of TTFT are preparation and transfer of a handover.
        """
        job, model = work.job, self._model
        is_exact = model.device.type == "cpu" and model.dtype == torch.bfloat16
        is_repeatable = is_exact and not self._snapshot_bytes
        is_placed = placement.done() and not placement.cancelled() and not placement.exception()
        if job.num_output_tokens or not (job.is_plain_draw and is_placed and is_repeatable):
            return
        token_id = int(logits.argmax())
        if token_id in job.stop_ids or token_id in model.eos_token_ids:
            return  # decode says how an answer ends
        with contextlib.suppress(ServingError):
            await self._fleet.announce(
                job,
                token_id,
                num_cached_tokens=begin.first_row,
                miss_reason=begin.miss_reason,
            )

    async def _compute(
        self, work: Work, begin: Begin, prompt: Prompt, placement: asyncio.Task[str]
    ) -> np.ndarray:
        """The logits behind the prompt; its pages are in the export then."""
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
                await self._announce(work, begin, logits, placement)
                await prompt.exported
                return logits

    def _prompt(self, work: Work, begin: Begin, images: PromptImages | None) -> Prompt:
        loop = asyncio.get_running_loop()

        def on_progress(num_remaining: int) -> None:
            work.active.num_queued_tokens = num_remaining
            self._on_progress()

        on_progress(len(work.token_ids) - begin.first_row)
        return Prompt(
            prompt_id=str(work.job.key),
            token_ids=work.token_ids,
            pages=work.pages,
            num_done=begin.first_row,
            arrival_s=work.job.submitted_unix_s or work.started_unix_s,
            on_page=work.export.copy_page,
            on_progress=on_progress,
            last_chunk_started=loop.create_future(),
            logits=loop.create_future(),
            exported=loop.create_future(),
            images=images,
            window=begin.window,
        )

    @contextlib.asynccontextmanager
    async def _early_placement(
        self, job: Job, last_chunk_started: asyncio.Future[None]
    ) -> AsyncIterator[asyncio.Task[str]]:
        """Asks for a decode instance while the last chunk runs."""

        async def place() -> str:
            await last_chunk_started
            return await self._fleet.of(job).place(())

        task = asyncio.get_running_loop().create_task(place())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _hand_over(
        self, work: Work, begin: Begin, logits: np.ndarray, placement: Awaitable[str]
    ) -> None:
        job = work.job
        work.active.phase = Phase.HANDOVER
        with self._tracer.start_as_current_span("prefill.handover") as span:
            parts = await self._parts(work, begin, logits)
            handover = Handover(
                self._fleet.of(job, lambda: convert.handover_to_wire(job, parts)),
                work.export.keep_alive,
            )
            try:
                decode_id = await handover.run(placement, work.active.left_s() - _ANSWER_S)
                span.set_attribute("rorqual.decode_id", decode_id)
            finally:
                span.set_attribute("rorqual.handover.tries", handover.num_tries)

    async def _parts(self, work: Work, begin: Begin, logits: np.ndarray) -> convert.HandoverParts:
        """Everything the offer refers to, published; a full arena is waited for.

        Not for long: others may wait for what this prompt holds. What needs memory comes first, so
        that the leases of the pages begin when all is there. Raises: QueueTimeout.
        """
        tokens = convert.tokens_to_wire(work.token_ids)
        prompt: Any = await self._published(work, lambda: put_payload(self._tensors, tokens))
        if prompt.HasField("ticket"):
            work.export.adopt(prompt.ticket)
        first_logits = await self._published(work, lambda: work.export.publish(logits))
        window = begin.window.at_end if begin.window else None
        return convert.HandoverParts(
            last_block_key=work.keys[-1] if work.keys else b"",
            num_stored_blocks=begin.num_stored_blocks,
            num_cached_tokens=begin.first_row,
            miss_reason=begin.miss_reason,
            provenance=begin.provenance,
            prompt=prompt,
            kv_pages=work.export.seal(),
            first_logits=first_logits,
            window=None if window is None else work.export.publish_window(window),
            model_fingerprint=self._model.fingerprint,
        )

    async def _published(self, work: Work, put: Callable[[], Awaitable[Any]]) -> Any:
        """What `put` gives once the arena has room; a ticket from before it is still good then."""
        left_s = max(0.0, work.active.left_s() - _ANSWER_S)
        return await once_there_is_room(put, min(left_s, LEASE_S / 3))
