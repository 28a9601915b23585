"""Vision as a process: it registers, reports load, refuses what the model can't see, drains."""

from __future__ import annotations

from pathlib import Path

import pytest
from rorqual_proto.v1 import tensor_pb2, vision_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.errors import Unsupported
from rorqual_runtime.settings import RuntimeSettings

from tests.support.service_process import service_process
from tests.support.tiny_model_dir import make_model_dir
from tests.support.waiting import WAIT_S


async def test_an_image_for_a_text_model_is_refused_and_the_service_drains(
    runtime_settings: RuntimeSettings, tmp_path: Path
) -> None:
    bus = await Bus.connect(runtime_settings, "test")
    env = {"RORQUAL_MODEL_DIR": str(make_model_dir(tmp_path / "blind-model"))}
    try:
        async with service_process(
            "vision", bus, nats_url=runtime_settings.nats_url, home=tmp_path / "home", env=env
        ) as service:
            assert service.instance.load is not None
            assert service.instance.load.service == "vision"
            with pytest.raises(Unsupported, match="blind-model has no vision tower"):
                await bus.request(
                    subjects.vision_encode(),
                    vision_pb2.VisionEncodeRequest(
                        request_id="r1", image=tensor_pb2.Payload(inline=b"png")
                    ),
                    vision_pb2.VisionEncodeReply,
                    timeout_s=WAIT_S,
                )
            assert await service.stop() == 0
    finally:
        await bus.close()
