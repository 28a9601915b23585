"""Vision services in this process on a real broker, with a random tiny tower."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from rorqual_proto.v1 import vision_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.payload import put_payload
from rorqual_runtime.service import open_service
from rorqual_runtime.settings import RuntimeSettings
from rorqual_runtime.tensors import TensorPlane
from rorqual_vision.eyes import Eyes, open_eyes
from rorqual_vision.service import VisionService
from rorqual_vision.settings import VisionSettings
from rorqual_vision.tower import RUNNABLE, read_description

from tests.support.random_tower import write_random_tower
from tests.support.waiting import WAIT_S


@dataclass
class RunningVision:
    """A service and its parts."""

    instance_id: str
    service: VisionService
    eyes: Eyes
    tensors: TensorPlane


RunVision = Callable[..., AbstractAsyncContextManager[RunningVision]]


@pytest.fixture(scope="session")
def tower_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tower") / "model"
    return write_random_tower(directory, architectures=list(RUNNABLE))


@pytest.fixture
def run_vision(runtime_settings: RuntimeSettings, tower_dir: Path) -> RunVision:
    """Starts an instance; keyword arguments are settings of it."""

    @asynccontextmanager
    async def start(name: str = "vision-1", **fields: Any) -> AsyncIterator[RunningVision]:
        settings = VisionSettings(model_dir=tower_dir, **fields)
        runtime = runtime_settings.model_copy(update={"instance_id": name})
        async with open_service("vision", runtime) as ctx, open_eyes(ctx, settings) as eyes:
            service = VisionService(ctx, read_description(tower_dir), eyes)
            await service.start()
            ctx.mark_ready()
            yield RunningVision(name, service, eyes, ctx.tensors)

    return start


@dataclass
class VisionClient:
    """Recipe, router and prefill in one."""

    bus: Bus
    tensors: TensorPlane

    async def prepare(self, data: bytes | None = None, **fields: Any) -> Any:
        image = None if data is None else await put_payload(self.tensors, data)
        request = vision_pb2.VisionPrepareRequest(**{"request_id": "r", "image": image, **fields})
        reply = await self.bus.request(
            subjects.vision_prepare(), request, vision_pb2.VisionPrepareReply, timeout_s=WAIT_S
        )
        return reply.prepared

    async def encode(self, prepared: Any, at: str | None = None, **fields: Any) -> Any:
        subject = subjects.vision_encode() if at is None else subjects.vision_encode_at(at)
        fields = {
            "image_digest": prepared.image_digest,
            "pixels": prepared.pixels,
            "request_id": "r",
            **fields,
        }
        request = vision_pb2.VisionEncodeRequest(**fields)
        reply = await self.bus.request(
            subject, request, vision_pb2.VisionEncodeReply, timeout_s=WAIT_S
        )
        return reply.encoded

    async def rows(self, encoded: Any) -> torch.Tensor:
        data = np.asarray(await self.tensors.fetch(encoded.embeddings))
        shape = tuple(encoded.embeddings.shape)
        return torch.from_numpy(data.copy()).view(torch.bfloat16).view(shape)


@pytest_asyncio.fixture
async def client(runtime_settings: RuntimeSettings) -> AsyncIterator[VisionClient]:
    async with contextlib.AsyncExitStack() as stack:
        bus = await Bus.connect(runtime_settings, "test")
        stack.push_async_callback(bus.close)
        tensors = await stack.enter_async_context(
            await TensorPlane.open(runtime_settings, "recipe-1", 1, runtime_settings.host_id)
        )
        yield VisionClient(bus, tensors)


@pytest.fixture(scope="session")
def tower_config(tower_dir: Path) -> dict[str, Any]:
    return dict(json.loads((tower_dir / "config.json").read_text()))
