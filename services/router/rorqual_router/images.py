"""Images of a submission to their embeddings, each at the vision instance that is done first."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from rorqual_policy import ImageRequest, choose_vision, image_work
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.decision_log import log_decision
from rorqual_runtime.errors import (
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    NoCapacity,
    ServingError,
    StaleTicket,
    Unavailable,
)
from rorqual_runtime.logs import get_logger
from rorqual_runtime.patience import AGAIN_S

from rorqual_router.convert import (
    PromptImage,
    TensorTicket,
    VisionEncodeReply,
    embeddings_from_wire,
    encode_request_to_wire,
)
from rorqual_router.fleet import Fleet
from rorqual_router.settings import RouterSettings

MAX_TRIES = 3
_ABSENT_S = 0.05
_WATCH_S = 0.5

log = get_logger(__name__)


class ImageEncoder:
    """Places images by the patches that every instance has outstanding."""

    def __init__(self, bus: Bus, fleet: Fleet, settings: RouterSettings) -> None:
        self._bus, self._fleet, self._settings = bus, fleet, settings
        self._sent_work: Counter[str] = Counter()
        """By instance: asked for by this router and not answered yet."""

    async def encode_all(
        self, request_id: str, model: str, images: Sequence[PromptImage], covered_tokens: int
    ) -> tuple[TensorTicket, ...]:
        """A ticket an image; an empty one for those within the first covered_tokens.

        Raises: what the first image that failed failed with; the others are let go then.
        """
        if not images:
            return ()
        turn = asyncio.Semaphore(self._settings.max_images_at_once)

        async def one(image: PromptImage) -> TensorTicket:
            if image.first_token + image.num_tokens <= covered_tokens:
                return TensorTicket()
            async with turn:
                return await self._encode(request_id, model, image)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(image)) for image in images]
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        return tuple(task.result() for task in tasks)

    async def _encode(self, request_id: str, model: str, image: PromptImage) -> TensorTicket:
        excluded: set[str] = set()
        error: ServingError | None = None
        for _ in range(MAX_TRIES):
            vision_id = await self._place(image, excluded)
            if vision_id is None:
                break
            try:
                return await self._ask(vision_id, request_id, model, image)
            except ServingError as failure:
                error = failure
                if isinstance(failure, InvalidRequest | StaleTicket):
                    break
                excluded.add(vision_id)
        raise _blamed(error, image)

    async def _place(self, image: PromptImage, excluded: set[str]) -> str | None:
        await self._fleet.wait_alive(("vision",), self._settings.vision_absent_s)
        request = ImageRequest(image.digest, image.num_patches, frozenset(excluded))
        instances = self._fleet.vision_instances(self._sent_work)
        decision = choose_vision(instances, request)
        log_decision("vision", (instances, request), decision)
        return decision.instance_id

    async def _ask(
        self, vision_id: str, request_id: str, model: str, image: PromptImage
    ) -> TensorTicket:
        work = image_work(image.num_patches)
        self._sent_work[vision_id] += work
        asking = asyncio.create_task(
            self._bus.request(
                subjects.vision_encode_at(vision_id),
                encode_request_to_wire(request_id, model, image),
                VisionEncodeReply,
                timeout_s=self._settings.vision_timeout_s,
                absent_timeout_s=_ABSENT_S,
                outlasts_outages=True,
                again_s=AGAIN_S,
            )
        )
        try:
            await self._answered(asking, vision_id)
        finally:
            asking.cancel()
            self._sent_work[vision_id] -= work
            if not self._sent_work[vision_id]:
                del self._sent_work[vision_id]
        return embeddings_from_wire(asking.result(), image)

    async def _answered(self, asking: asyncio.Task[VisionEncodeReply], vision_id: str) -> None:
        """Wait for an answer, no longer than the instance lives; while the broker is away nobody
        knows whether it does. Raises: Unavailable."""
        while not (await asyncio.wait({asking}, timeout=_WATCH_S))[0]:
            if self._bus.is_settled and self._fleet.is_silent("vision", vision_id):
                raise Unavailable(f"vision instance {vision_id} is gone")


def _blamed(error: ServingError | None, image: PromptImage) -> ServingError:
    """The error with the image's field; what is gone or slow here may work a little later."""
    param = image.param or None
    if error is None:
        return NoCapacity("no vision instance is alive", param=param, retry_after_s=5)
    if isinstance(error, StaleTicket | DeadlineExceeded | Internal):
        return NoCapacity(f"an image could not be encoded: {error.message}", param=param)
    error.param = error.param or param
    return error
