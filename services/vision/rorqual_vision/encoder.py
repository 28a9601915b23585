"""The tower's thread: images that wait are encoded together, up to a step's work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from rorqual_policy.vision_placement import image_work
from rorqual_runtime.errors import Internal, NoCapacity
from rorqual_runtime.logs import get_logger

from rorqual_vision.cache import Embeddings

log = get_logger(__name__)

Pixels = npt.NDArray[np.uint8]
_RATE_WEIGHT = 0.2


class Tower(Protocol):
    """The part of a vision tower that is called here."""

    def encode(self, images: Sequence[Pixels]) -> list[torch.Tensor]: ...


@dataclass(eq=False, slots=True)
class _Waiting:
    pixels: Pixels
    work: int
    num_patches: int
    done: asyncio.Future[Embeddings]


class Encoder:
    """Owns the tower while it runs. Images are taken in the order they came."""

    def __init__(self, tower: Tower, *, patch: int, step_work: int, max_queued_work: int) -> None:
        self._tower, self._patch = tower, patch
        self.step_work, self._max_queued_work = step_work, max_queued_work
        self._loop = asyncio.get_running_loop()
        self._line: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="vision-encoder", daemon=True)
        self.queued_work = 0
        self.num_asked_patches = 0
        """Since start, those refused included."""
        self.num_steps = 0
        self.patches_per_s = 0.0

    def start(self) -> None:
        """Begin to encode."""
        self._thread.start()

    async def close(self) -> None:
        """Stop after the step under way."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    async def encode(self, pixels: Pixels) -> Embeddings:
        """Rows of one image. Raises: NoCapacity when too much waits, Internal."""
        num_patches = (pixels.shape[0] // self._patch) * (pixels.shape[1] // self._patch)
        waiting = _Waiting(pixels, image_work(num_patches), num_patches, self._loop.create_future())
        self.num_asked_patches += num_patches
        with self._changed:
            if self.queued_work and self.queued_work + waiting.work > self._max_queued_work:
                raise NoCapacity("too many images are waiting to be encoded")
            self.queued_work += waiting.work
            self._line.append(waiting)
            self._changed.notify_all()
        return await waiting.done

    def _run(self) -> None:
        while batch := self._next_batch():
            started_s = time.perf_counter()
            results = self._encode(batch)
            self._note(batch, time.perf_counter() - started_s)
            for waiting, result in zip(batch, results, strict=True):
                self._post(_settle, waiting.done, result)

    def _next_batch(self) -> list[_Waiting]:
        """What the next step takes; empty when the encoder closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._line or self._is_closing)
            batch: list[_Waiting] = []
            work = 0
            while not self._is_closing and self._line:
                if batch and work + self._line[0].work > self.step_work:
                    break
                batch.append(self._line.popleft())
                work += batch[-1].work
            return batch

    def _encode(self, batch: list[_Waiting]) -> list[Embeddings | Internal]:
        """A batch that fails is tried image by image, so that only the cause of it fails."""
        try:
            rows = self._tower.encode([waiting.pixels for waiting in batch])
            return [_embeddings(tensor) for tensor in rows]
        except Exception as error:
            if len(batch) > 1:
                return [result for waiting in batch for result in self._encode([waiting])]
            log.exception("an image could not be encoded")
            return [Internal(f"an image could not be encoded ({type(error).__name__})")]

    def _note(self, batch: list[_Waiting], took_s: float) -> None:
        rate = sum(waiting.num_patches for waiting in batch) / max(took_s, 1e-6)
        weight = _RATE_WEIGHT if self.patches_per_s else 1.0
        self.patches_per_s += (rate - self.patches_per_s) * weight
        with self._changed:
            self.num_steps += 1
            self.queued_work -= sum(waiting.work for waiting in batch)

    def _post(self, function: Callable[..., None], *args: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)


def _embeddings(rows: torch.Tensor) -> Embeddings:
    rows = rows.contiguous().cpu()
    name = str(rows.dtype).removeprefix("torch.")
    return Embeddings(rows.view(torch.uint8).numpy().reshape(-1), name, *rows.shape)


def _settle(done: asyncio.Future[Embeddings], result: Embeddings | Internal) -> None:
    if done.done():
        return
    if isinstance(result, Internal):
        done.set_exception(result)
    else:
        done.set_result(result)
