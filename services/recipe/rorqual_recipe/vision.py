"""Vision over the bus."""

from rorqual_runtime import subjects
from rorqual_runtime.errors import DeadlineExceeded, ServingError
from rorqual_runtime.payload import free_payload, put_payload
from rorqual_runtime.service import ServiceContext

from rorqual_recipe import convert
from rorqual_recipe.conversation import ImagePart
from rorqual_recipe.images import PreparedImage

_MAX_TRIES = 3
_ABSENT_S = 3.0
_PAUSE_S = 0.1


class BusVision:
    """Any vision instance; one that can't now, or is gone, is no reason to fail while others may.

    timeout_s: of one try.
    """

    def __init__(self, ctx: ServiceContext, model_id: str, *, timeout_s: float) -> None:
        self._ctx, self._model_id, self._timeout_s = ctx, model_id, timeout_s

    async def __call__(self, request_id: str, part: ImagePart, data: bytes | None) -> PreparedImage:
        """See VisionPort."""
        for num_tries in range(1, _MAX_TRIES):
            try:
                return await self._ask(request_id, part, data)
            except ServingError as error:
                if not error.retryable and not isinstance(error, DeadlineExceeded):
                    raise
            await self._ctx.clock.sleep(_PAUSE_S * num_tries)
        return await self._ask(request_id, part, data)

    async def _ask(self, request_id: str, part: ImagePart, data: bytes | None) -> PreparedImage:
        tensors = self._ctx.tensors
        image = None if data is None else await put_payload(tensors, data, lease_s=self._timeout_s)
        try:
            reply = await self._ctx.bus.request(
                subjects.vision_prepare(),
                convert.prepare_to_wire(request_id, self._model_id, part, image),
                convert.VisionPrepareReply,
                timeout_s=self._timeout_s,
                absent_timeout_s=_ABSENT_S,
            )
        finally:
            if image is not None:
                free_payload(tensors, image)
        return convert.prepared_from_wire(reply)
