"""Embeddings of a prompt's images, fetched before its rows are computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rorqual_engine.batch import ImageRows
from rorqual_policy.blocks import ImageSpan
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.errors import Corrupt, NoCapacity, QueueTimeout, ServingError, StaleTicket
from rorqual_runtime.patience import AGAIN_S
from rorqual_runtime.tensors import TensorPlane

from rorqual_prefill import convert
from rorqual_prefill.job import Job, JobImage

FETCH_S = 10.0
ENCODE_S = 30.0
_ABSENT_S = 0.5
_AT_ONCE = 16
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class PromptImages:
    """Images and their rows, in order of their places; read by the engine thread."""

    spans: Sequence[ImageSpan]
    rows: Sequence[torch.Tensor]

    def within(self, start: int, end: int) -> ImageRows | None:
        """Rows of the chunk of positions start .. end that come from images."""
        places: list[np.ndarray] = []
        values: list[torch.Tensor] = []
        for span, rows in zip(self.spans, self.rows, strict=True):
            first, last = max(start, span.start), min(end, span.end)
            if first < last:
                places.append(np.arange(first - start, last - start, dtype=np.int64))
                values.append(rows[first - span.start : last - span.start])
        if not places:
            return None
        return ImageRows(np.concatenate(places), torch.cat(values))


class ImageFetcher:
    """Reads embeddings over the tensor plane; what is gone is asked for again at vision.

    max_rows: of all prompts whose images are held; one with more is alone.
    """

    def __init__(self, bus: Bus, tensors: TensorPlane, max_rows: int) -> None:
        self._bus, self._tensors, self._max_rows = bus, tensors, max_rows
        self._line = asyncio.Lock()
        self._freed = asyncio.Event()
        self.num_rows = 0

    @asynccontextmanager
    async def holding(
        self, job: Job, first_row: int, timeout_s: float
    ) -> AsyncIterator[PromptImages | None]:
        """Images with rows from first_row on, the first to be computed, while the block runs.

        Raises: QueueTimeout when too many others are held; else ServingError, retryable when
            vision or its data is away.
        """
        wanted = [image for image in job.images if image.span.end > first_row]
        if not wanted:
            yield None
            return
        by_content = {image.span.digest: image for image in wanted}
        num_rows = sum(image.span.num_tokens for image in by_content.values())
        await self._wait_for_room(num_rows, timeout_s)
        try:
            yield await self._fetch(job, wanted, by_content)
        finally:
            self.num_rows -= num_rows
            self._freed.set()

    async def _wait_for_room(self, num_rows: int, timeout_s: float) -> None:
        """First come, first served."""
        try:
            async with asyncio.timeout(timeout_s), self._line:
                while self.num_rows and self.num_rows + num_rows > self._max_rows:
                    self._freed.clear()
                    await self._freed.wait()
                self.num_rows += num_rows
        except TimeoutError:
            raise QueueTimeout(f"no room for {num_rows} image rows in {timeout_s:.1f} s") from None

    async def _fetch(
        self, job: Job, wanted: Sequence[JobImage], by_content: Mapping[bytes, JobImage]
    ) -> PromptImages:
        turn = asyncio.Semaphore(_AT_ONCE)

        async def one(image: JobImage) -> torch.Tensor:
            async with turn:
                return await self._rows(job, image)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = {
                    digest: group.create_task(one(image)) for digest, image in by_content.items()
                }
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        spans = [image.span for image in wanted]
        return PromptImages(spans, [tasks[span.digest].result() for span in spans])

    async def _rows(self, job: Job, image: JobImage) -> torch.Tensor:
        if image.embeddings.size_bytes:
            try:
                return await self._read(image, image.embeddings)
            except (StaleTicket, Corrupt):
                pass
            except ServingError as error:
                if not error.retryable:
                    raise
        return await self._read(image, await self._encode_again(job, image))

    async def _read(self, image: JobImage, ticket: Any) -> torch.Tensor:
        num_tokens = image.span.num_tokens
        shape, dtype = tuple(ticket.shape), _DTYPES.get(ticket.dtype)
        if dtype is None or len(shape) != 2 or shape[0] != num_tokens:
            raise Corrupt(f"embeddings of {num_tokens} tokens came as {ticket.dtype} {shape}")
        data = await self._tensors.fetch(ticket, timeout_s=FETCH_S)
        return torch.from_numpy(data).view(dtype).view(shape)

    async def _encode_again(self, job: Job, image: JobImage) -> Any:
        """A fresh ticket, first from who encoded the image or holds its pixels."""
        owners = (image.embeddings.owner_id, image.pixels.owner_id)
        places = [subjects.vision_encode_at(o) for o in dict.fromkeys(owners) if o]
        error: ServingError | None = None
        for subject in (*places, subjects.vision_encode()):
            try:
                reply = await self._bus.request(
                    subject,
                    convert.encode_to_wire(job, image),
                    convert.VisionReplyMessage,
                    timeout_s=ENCODE_S,
                    absent_timeout_s=_ABSENT_S,
                    outlasts_outages=True,
                    again_s=AGAIN_S,
                )
            except ServingError as failure:
                error = failure
            else:
                return reply.encoded.embeddings
        reason = error.message if error else "nobody has it"
        raise NoCapacity(f"an image is gone: {reason}", param=image.param or None)
