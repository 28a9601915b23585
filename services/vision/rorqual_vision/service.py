"""Handlers of the vision service."""

from __future__ import annotations

import asyncio

from rorqual_proto.v1 import load_pb2, router_pb2, vision_pb2
from rorqual_runtime import subjects
from rorqual_runtime.cancelled import CancelledIds
from rorqual_runtime.context import MessageContext
from rorqual_runtime.errors import Cancelled, Unsupported
from rorqual_runtime.service import ServiceContext

from rorqual_vision.tower import ModelDescription

_PARAM = "messages"


class VisionService:
    """Answers image requests for one model. No image is read before the model can see."""

    def __init__(self, ctx: ServiceContext, model: ModelDescription) -> None:
        self._ctx = ctx
        self._model = model
        self._cancelled = CancelledIds()
        self._num_active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Serve requests from now on."""
        bus = self._ctx.bus
        self._ctx.report_load(self._fill)
        await bus.subscribe(subjects.cancel(), router_pb2.CancelRequest, self.on_cancel)
        await bus.serve(
            subjects.vision_encode(),
            vision_pb2.VisionEncodeRequest,
            vision_pb2.VisionEncodeReply,
            self.on_encode,
            name="encode",
        )

    async def on_encode(
        self, request: vision_pb2.VisionEncodeRequest, _context: MessageContext
    ) -> vision_pb2.VisionEncodeReply:
        """Raises: Unsupported, Cancelled."""
        if request.request_id in self._cancelled:
            raise Cancelled()
        self._num_active += 1
        self._idle.clear()
        try:
            if request.image.WhichOneof("body") == "ticket":
                await self._ctx.tensors.release_remote(request.image.ticket)
            raise refusal(self._model)
        finally:
            self._num_active -= 1
            if self._num_active == 0:
                self._idle.set()

    async def on_cancel(self, request: router_pb2.CancelRequest, _context: MessageContext) -> None:
        """Refuse this request should it still arrive; unknown ids are fine."""
        self._cancelled.add(request.request_id)

    async def drain(self, _timeout_s: float) -> None:
        """Return once no request is under way any more."""
        await self._idle.wait()

    def _fill(self, report: load_pb2.LoadReport) -> None:
        report.num_active_requests = self._num_active


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
