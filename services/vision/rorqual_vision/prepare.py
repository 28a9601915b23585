"""An image's source to the pixels that the tower sees, and what they are to the model."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
from rorqual_engine.models.deepseek.image_fit import fit_image
from rorqual_engine.models.deepseek.image_size import ImagePlan, ImageRules, plan_image
from rorqual_runtime.errors import NoCapacity, StaleTicket
from rorqual_runtime.tensors import TensorPlane

from rorqual_vision.picture import DecodeLimits, decode

DIGEST_BYTES = 32
MAX_KNOWN = 1024
_DIGEST_LABEL = b"rorqual-img-v1"
_INLINE_BYTES = 1 << 20

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Fitted:
    """Pixels as the tower sees them. digest: of them and their shape."""

    pixels: Pixels
    plan: ImagePlan
    digest: bytes


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is said about an image. pixels: a ticket, uint8 [height, width, 3]."""

    digest: bytes
    plan: ImagePlan
    num_patches: int
    pixels: Any


def pixels_digest(pixels: Pixels) -> bytes:
    """Names an image by what the tower sees of it, however it was packed."""
    state = blake2b(digest_size=DIGEST_BYTES, person=_DIGEST_LABEL)
    state.update(np.array(pixels.shape[:2], dtype="<u4").tobytes())
    state.update(np.ascontiguousarray(pixels).data)
    return state.digest()


def fit(data: bytes, detail: str, rules: ImageRules, limits: DecodeLimits) -> Fitted:
    """An image file made to size. Raises: BadImage."""
    image = decode(data, limits)
    plan = plan_image(*image.size, rules.for_detail(detail))
    pixels = fit_image(image, plan)
    return Fitted(pixels, plan, pixels_digest(pixels))


class Preparer:
    """Decodes in a few threads; a file seen before is not decoded while its pixels are held."""

    def __init__(
        self,
        tensors: TensorPlane,
        rules: ImageRules,
        limits: DecodeLimits,
        *,
        num_threads: int,
        max_waiting: int,
        lease_s: float,
        make_room: Callable[[], bool],
    ) -> None:
        """make_room: frees arena memory that can be done without; False = there is none."""
        self._tensors, self._rules, self._limits = tensors, rules, limits
        self._max_waiting, self._lease_s = max_waiting, lease_s
        self._make_room = make_room
        self._executor = ThreadPoolExecutor(num_threads, "vision-decode")
        self._known: OrderedDict[bytes, Prepared] = OrderedDict()
        self._num_waiting = 0

    def close(self) -> None:
        """Stop the threads after the images being decoded."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    async def prepare(self, data: bytes, detail: str) -> Prepared:
        """Raises: BadImage; NoCapacity when too much waits or the arena is full."""
        key = await _file_key(data, detail)
        if (known := self._renewed(key)) is not None:
            return known
        fitted = await self.fit(data, detail)
        prepared = await self._publish(fitted)
        self._known[key] = prepared
        self._known.move_to_end(key)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return prepared

    async def fit(self, data: bytes, detail: str) -> Fitted:
        """The pixels of a file. Raises: BadImage, NoCapacity."""
        return await self._in_thread(lambda: fit(data, detail, self._rules, self._limits))

    async def _in_thread(self, work: Callable[[], Fitted]) -> Fitted:
        if self._num_waiting >= self._max_waiting:
            raise NoCapacity("too many images are waiting to be read")
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._num_waiting -= 1

    async def _publish(self, fitted: Fitted) -> Prepared:
        plan, pixels = fitted.plan, fitted.pixels
        data = np.ascontiguousarray(pixels)
        while True:
            try:
                ticket = await self._tensors.publish(
                    data, shape=pixels.shape, lease_s=self._lease_s
                )
                break
            except NoCapacity:
                if not self._make_room():
                    raise
        patch = self._rules.patch
        num_patches = (plan.height // patch) * (plan.width // patch)
        return Prepared(fitted.digest, plan, num_patches, ticket)

    def _renewed(self, key: bytes) -> Prepared | None:
        known = self._known.get(key)
        if known is None:
            return None
        try:
            self._tensors.renew(known.pixels, self._lease_s)
        except StaleTicket:
            del self._known[key]
            return None
        self._known.move_to_end(key)
        return known


async def _file_key(data: bytes, detail: str) -> bytes:
    """Names a file as it was sent. Hashing a large one would hold up the event loop."""

    def digest() -> bytes:
        return blake2b(data, digest_size=DIGEST_BYTES, key=detail.encode()[:64]).digest()

    return digest() if len(data) <= _INLINE_BYTES else await asyncio.to_thread(digest)
