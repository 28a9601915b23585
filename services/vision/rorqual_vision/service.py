"""Handlers of the vision service."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from rorqual_runtime import subjects
from rorqual_runtime.cancelled import CancelledIds, cancel_target
from rorqual_runtime.context import MessageContext
from rorqual_runtime.errors import InvalidRequest, ServingError, Unsupported
from rorqual_runtime.payload import drop_payload
from rorqual_runtime.service import ServiceContext
from rorqual_runtime.under_way import UnderWay

from rorqual_vision.convert import (
    CancelMessage,
    EncodeMessage,
    EncodeReplyMessage,
    Image,
    LoadMessage,
    PrepareMessage,
    PrepareReplyMessage,
    encoded_to_wire,
    fill_load,
    prepared_to_wire,
)
from rorqual_vision.problems import BadImage
from rorqual_vision.tower import ModelDescription

if TYPE_CHECKING:
    from rorqual_vision.eyes import Eyes

_PARAM = "messages"

T = TypeVar("T")


class VisionService:
    """Answers image requests for one model. eyes: None = it can't see, and no image is read."""

    def __init__(
        self, ctx: ServiceContext, model: ModelDescription, eyes: Eyes | None = None
    ) -> None:
        self._ctx = ctx
        self._model = model
        self._eyes = eyes
        self._under_way = UnderWay(CancelledIds(ctx.clock))

    async def start(self) -> None:
        """Serve requests from now on."""
        bus = self._ctx.bus
        self._ctx.report_load(self._fill)
        await bus.subscribe(subjects.cancel(), CancelMessage, self.on_cancel)
        for name, subject in (
            ("encode_at", subjects.vision_encode_at(self._ctx.instance_id)),
            ("encode", subjects.vision_encode()),
        ):
            await bus.serve(subject, EncodeMessage, EncodeReplyMessage, self.on_encode, name=name)
        await bus.serve(
            subjects.vision_prepare(),
            PrepareMessage,
            PrepareReplyMessage,
            self.on_prepare,
            name="prepare",
        )

    async def on_prepare(
        self, request: PrepareMessage, _context: MessageContext
    ) -> PrepareReplyMessage:
        """Raises: InvalidRequest that names the image's field, ServingError."""
        return await self._under_way.run(request.request_id, self._prepare(request))

    async def on_encode(
        self, request: EncodeMessage, _context: MessageContext
    ) -> EncodeReplyMessage:
        """Raises: Unsupported, InvalidRequest, ServingError."""
        return await self._under_way.run(request.request_id, self._encode(request))

    async def on_cancel(self, request: CancelMessage, _context: MessageContext) -> None:
        """Let go of this request, and refuse it should it still arrive; unknown ids are fine."""
        request_id, choice_index = cancel_target(request)
        if choice_index is None:
            self._under_way.cancel(request_id)

    async def drain(self, _timeout_s: float) -> None:
        """Return once no request is under way any more."""
        await self._under_way.wait_idle()

    async def _prepare(self, request: PrepareMessage) -> PrepareReplyMessage:
        param = request.param or _PARAM
        eyes = self._eyes or await self._refuse(request.image, param)
        if request.HasField("url"):
            work = eyes.prepare_url(request.url, request.detail)
        else:
            work = eyes.prepare_file(request.image, request.detail)
        prepared = await _blaming(param, work)
        return prepared_to_wire(
            digest=prepared.digest,
            grid=(prepared.plan.num_rows, prepared.plan.num_columns),
            num_tokens=prepared.plan.num_tokens,
            num_patches=prepared.num_patches,
            pixels=prepared.pixels,
        )

    async def _encode(self, request: EncodeMessage) -> EncodeReplyMessage:
        eyes = self._eyes or await self._refuse(request.image, _PARAM)
        if request.HasField("pixels"):
            digest = request.image_digest
            ticket, made = await eyes.encode_pixels(digest, request.pixels)
        else:
            digest, ticket, made = await _blaming(_PARAM, eyes.encode_file(request.image))
        return encoded_to_wire(digest, ticket, made.num_tokens)

    async def _refuse(self, image: Image, param: str) -> Eyes:
        await drop_payload(self._ctx.tensors, image)
        raise refusal(self._model, param)

    def _fill(self, report: LoadMessage) -> None:
        """What is kept for the next request belongs to none, and counts as no lease."""
        report.num_active_requests = len(self._under_way)
        report.num_held_leases = 0
        if self._eyes is not None:
            encoder = self._eyes.encoder
            fill_load(
                report,
                queued_patches=encoder.queued_work,
                step_patches=encoder.step_work,
                patches_per_s=encoder.patches_per_s,
                asked_patches_total=encoder.num_asked_patches,
            )


async def _blaming(param: str, work: Awaitable[T]) -> T:
    """What is wrong with an image is its sender's fault, and names the field it came from."""
    try:
        return await work
    except BadImage as error:
        raise InvalidRequest(str(error), param) from error
    except ServingError as error:
        error.param = error.param or param
        raise


def refusal(model: ModelDescription, param: str = _PARAM) -> Unsupported:
    """Why this model gets no image embeddings, and what the caller can do about it."""
    if model.tower_type is None:
        return Unsupported(
            f"model {model.model_id} has no vision tower; "
            "remove the image or serve a model with one",
            param,
        )
    return Unsupported(
        f"model {model.model_id} has a vision tower of type {model.tower_type}, which this build "
        "can't run; remove the image or serve another model",
        param,
        details={"tower_type": model.tower_type},
    )
