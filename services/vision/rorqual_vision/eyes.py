"""How the parts of a vision instance that can see are put together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from rorqual_engine.errors import EngineError
from rorqual_engine.models.deepseek.image_size import ImageRules
from rorqual_engine.models.deepseek.vision import VisionTower
from rorqual_engine.models.registry import DTYPES, find_device
from rorqual_runtime.errors import Corrupt, InvalidRequest, NoCapacity, Unsupported
from rorqual_runtime.logs import get_logger, log_duration
from rorqual_runtime.payload import get_payload
from rorqual_runtime.service import ServiceContext
from rorqual_runtime.tensors import TensorPlane

from rorqual_vision.addresses import parse_networks
from rorqual_vision.cache import EmbeddingCache, Embeddings
from rorqual_vision.encoder import Encoder
from rorqual_vision.fetch import FetchLimits, fetch_image
from rorqual_vision.picture import DecodeLimits
from rorqual_vision.prepare import Prepared, Preparer, pixels_digest
from rorqual_vision.settings import VisionSettings
from rorqual_vision.shelf import Shelf

log = get_logger(__name__)

_FETCH_TURN_S = 3.0


class Eyes:
    """Prepares and encodes images. What goes wrong with an image is a BadImage."""

    def __init__(
        self,
        tensors: TensorPlane,
        settings: VisionSettings,
        rules: ImageRules,
        preparer: Preparer,
        encoder: Encoder,
        shelf: Shelf,
    ) -> None:
        self._tensors, self._rules = tensors, rules
        self._preparer, self.encoder = preparer, encoder
        self._max_image_bytes = settings.max_image_bytes
        self._fetch_limits = FetchLimits(
            max_bytes=settings.max_image_bytes,
            timeout_s=settings.fetch_timeout_s,
            max_redirects=settings.max_redirects,
            allowed=parse_networks(settings.allowed_networks),
        )
        self.cache = EmbeddingCache(settings.cache_bytes)
        self._shelf = shelf
        self._fetching = asyncio.Semaphore(settings.max_fetches)

    async def prepare_url(self, url: str, detail: str) -> Prepared:
        """Raises: BadImage, NoCapacity."""
        try:
            async with asyncio.timeout(_FETCH_TURN_S):
                await self._fetching.acquire()
        except TimeoutError:
            raise NoCapacity("too many images are being fetched") from None
        try:
            data = await fetch_image(url, self._fetch_limits)
            return await self._preparer.prepare(data, detail)
        finally:
            self._fetching.release()

    async def prepare_file(self, image: Any, detail: str) -> Prepared:
        """image: a payload, which stays its sender's: it may ask again. Raises: BadImage,
        ServingError."""
        data = await get_payload(self._tensors, image, keep=True, max_bytes=self._max_image_bytes)
        return await self._preparer.prepare(data, detail)

    async def encode_pixels(self, digest: bytes, pixels: Any) -> tuple[Any, Embeddings]:
        """A ticket for the embeddings of prepared pixels. Raises: ServingError."""

        async def make() -> Embeddings:
            found = await self._read_pixels(pixels)
            if await asyncio.to_thread(pixels_digest, found) != digest:
                raise Corrupt("the pixels are not those of the image's digest")
            return await self.encoder.encode(found)

        made = await self.cache.get(digest, make)
        return await self._shelf.put(digest, made), made

    async def encode_file(self, image: Any) -> tuple[bytes, Any, Embeddings]:
        """Digest, ticket and embeddings of an image file. Raises: BadImage, ServingError."""
        data = await get_payload(self._tensors, image, max_bytes=self._max_image_bytes)
        fitted = await self._preparer.fit(data, "")
        made = await self.cache.get(fitted.digest, lambda: self.encoder.encode(fitted.pixels))
        return fitted.digest, await self._shelf.put(fitted.digest, made), made

    async def _read_pixels(self, ticket: Any) -> np.ndarray:
        shape = tuple(ticket.shape)
        patch = self._rules.patch
        is_image = len(shape) == 3 and shape[2] == 3 and ticket.dtype == "uint8"
        if not is_image or not shape[0] or not shape[1] or shape[0] % patch or shape[1] % patch:
            raise InvalidRequest("pixels must be uint8 [height, width, 3] in whole patches")
        if -(-shape[0] // self._rules.cell) * -(-shape[1] // self._rules.cell) > (
            self._rules.max_tokens
        ):
            raise InvalidRequest(f"pixels {shape} are more than this model takes")
        return (await self._tensors.fetch(ticket)).reshape(shape)


@asynccontextmanager
async def open_eyes(ctx: ServiceContext, settings: VisionSettings) -> AsyncIterator[Eyes]:
    """Load the tower; everything is closed after the block. Raises: Unsupported."""
    with log_duration(log, "vision tower loaded"):
        tower = await asyncio.to_thread(_load, settings)
    rules = tower.config.rules
    shelf = Shelf(ctx.tensors, settings.embeddings_lease_s)
    preparer = Preparer(
        ctx.tensors,
        rules,
        DecodeLimits(settings.max_edge, settings.max_pixels),
        num_threads=settings.decode_threads,
        max_waiting=settings.max_waiting_images,
        lease_s=settings.pixels_lease_s,
        make_room=shelf.make_room,
    )
    encoder = Encoder(
        tower,
        patch=rules.patch,
        step_work=settings.step_patches,
        max_queued_work=settings.max_queued_patches,
    )
    eyes = Eyes(ctx.tensors, settings, rules, preparer, encoder, shelf)
    encoder.start()
    try:
        yield eyes
    finally:
        await eyes.cache.close()
        await encoder.close()
        await asyncio.to_thread(preparer.close)


def _load(settings: VisionSettings) -> VisionTower:
    if settings.dtype not in DTYPES:
        raise Unsupported(f"dtype {settings.dtype!r}; known are {', '.join(DTYPES)}")
    try:
        config = json.loads((settings.model_dir / "config.json").read_text(encoding="utf-8"))
        device = find_device(settings.device)
        return VisionTower.load(settings.model_dir, config, device, DTYPES[settings.dtype])
    except EngineError as error:
        raise Unsupported(str(error)) from error
