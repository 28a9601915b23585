"""Handlers of the vision service."""

from __future__ import annotations

from rorqual_runtime import subjects
from rorqual_runtime.cancelled import CancelledIds, cancel_target
from rorqual_runtime.context import MessageContext
from rorqual_runtime.errors import Unsupported
from rorqual_runtime.payload import drop_payload
from rorqual_runtime.service import ServiceContext
from rorqual_runtime.under_way import UnderWay

from rorqual_vision.convert import (
    CancelMessage,
    EncodeMessage,
    EncodeReplyMessage,
    Image,
    LoadMessage,
)
from rorqual_vision.tower import ModelDescription

_PARAM = "messages"


class VisionService:
    """Answers image requests for one model. No image is read before the model can see."""

    def __init__(self, ctx: ServiceContext, model: ModelDescription) -> None:
        self._ctx = ctx
        self._model = model
        self._under_way = UnderWay(CancelledIds(ctx.clock))

    async def start(self) -> None:
        """Serve requests from now on."""
        bus = self._ctx.bus
        self._ctx.report_load(self._fill)
        await bus.subscribe(subjects.cancel(), CancelMessage, self.on_cancel)
        await bus.serve(
            subjects.vision_encode(),
            EncodeMessage,
            EncodeReplyMessage,
            self.on_encode,
            name="encode",
        )

    async def on_encode(
        self, request: EncodeMessage, _context: MessageContext
    ) -> EncodeReplyMessage:
        """Raises: Unsupported, Cancelled."""
        return await self._under_way.run(request.request_id, self._refuse(request.image))

    async def on_cancel(self, request: CancelMessage, _context: MessageContext) -> None:
        """Let go of this request, and refuse it should it still arrive; unknown ids are fine."""
        request_id, choice_index = cancel_target(request)
        if choice_index is None:
            self._under_way.cancel(request_id)

    async def drain(self, _timeout_s: float) -> None:
        """Return once no request is under way any more."""
        await self._under_way.wait_idle()

    async def _refuse(self, image: Image) -> EncodeReplyMessage:
        await drop_payload(self._ctx.tensors, image)
        raise refusal(self._model)

    def _fill(self, report: LoadMessage) -> None:
        report.num_active_requests = len(self._under_way)


def refusal(model: ModelDescription) -> Unsupported:
    """Why this model gets no image embeddings, and what the caller can do about it."""
    if model.tower_type is None:
        return Unsupported(
            f"model {model.model_id} has no vision tower; "
            "remove the image or serve a model with one",
            _PARAM,
        )
    return Unsupported(
        f"model {model.model_id} has a vision tower of type {model.tower_type}, which this build "
        "can't run; remove the image or serve another model",
        _PARAM,
        details={"tower_type": model.tower_type},
    )
